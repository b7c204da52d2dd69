"""The end of a restore: what wasn't asked for goes, views and sequences come."""

from __future__ import annotations

from collections.abc import Sequence

from etl.copy.statements import create, scoped
from etl.ddl import THERE_ALREADY, DdlExecutor
from etl.downstream import MySQLSession
from etl.restore.lineage import Name
from etl.restore.scratch import Scratch
from etl.restore.there import look
from etl.rules import exactly
from etl.settings import Settings
from upstream.folded import folded
from upstream.schema import Table

__all__ = ["make_others", "remove_more"]


def remove_more(scratch: Scratch, made: Sequence[Name], asked: Sequence[Name]) -> None:
    """Drop what was `made` and isn't `asked` for. Raises DownstreamError."""
    kept = {(folded(schema), folded(name)) for schema, name in asked}
    scratch.remove([name for name in made if (folded(name[0]), folded(name[1])) not in kept])


def make_others(session: MySQLSession, own: Settings, others: Sequence[Table], ts: int) -> list[str]:
    """Make views and sequences; what couldn't be made, in words. Raises DownstreamError, DdlError."""
    if not others:
        return []
    filters = exactly((table.schema_name, table.name) for table in others)
    executor = DdlExecutor(session)
    warnings: list[str] = []
    for table in others:
        place = own.routes.target(table.schema_name, table.name)
        wanted = scoped(create(table, ts), filters, own.routes)
        if wanted is None or look(session, [(place.schema, place.table)]).tables:
            continue
        executor.fingerprint(wanted)
        warnings += [one for one in executor.execute(wanted) if not one.endswith(THERE_ALREADY)]
        session.commit()
    return warnings
