"""The end of a restore: what wasn't asked for goes, views and sequences come."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.etl.changes.rules import filter_for_tables
from sluice.etl.copy.statements import create_object, scoped_statement
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl import ALREADY_EXISTS, DdlExecutor
from sluice.etl.restore.lineage import Name
from sluice.etl.restore.scratch import ScratchSchema
from sluice.etl.restore.target_inspection import inspect_target
from sluice.etl.settings import Settings
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table

__all__ = ["create_views_and_sequences", "drop_unrequested"]


def drop_unrequested(scratch: ScratchSchema, made: Sequence[Name], asked: Sequence[Name]) -> None:
    """Drop what was `made` and isn't `asked` for. Raises DownstreamError."""
    kept = {(folded(schema), folded(name)) for schema, name in asked}
    scratch.remove([name for name in made if (folded(name[0]), folded(name[1])) not in kept])


def create_views_and_sequences(
    session: MySQLSession, own: Settings, others: Sequence[Table], ts: int
) -> list[str]:
    """Make views and sequences; what couldn't be made, in words.

    Raises DownstreamError, DdlError.
    """
    if not others:
        return []
    filters = filter_for_tables((table.schema_name, table.name) for table in others)
    executor = DdlExecutor(session)
    warnings: list[str] = []
    for table in others:
        place = own.routes.target(table.schema_name, table.name)
        wanted = scoped_statement(create_object(table, ts), filters, own.routes)
        if wanted is None or inspect_target(session, [(place.schema, place.table)]).tables:
            continue
        executor.fingerprint(wanted)
        warnings += [one for one in executor.execute(wanted) if not one.endswith(ALREADY_EXISTS)]
        session.commit()
    return warnings
