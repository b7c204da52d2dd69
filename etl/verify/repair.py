"""Repair the differences that a verification found.

By SQL for people to run, or by a backfill of those rows, after which the tables are compared again.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.rules import without_source_column
from sluice.etl.copy.backfill import BackfillRequest, create_backfill
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Settings
from sluice.etl.verify.errors import VerifyError
from sluice.etl.verify.reapply.latest_rows import condition_of
from sluice.etl.verify.repair_sql import RepairStatements, repair_script
from sluice.etl.verify.result import TableResult, VerifyRequest, VerifySummary
from sluice.etl.verify.row_diff import RowDiff, differing_keys, key_of
from sluice.etl.verify.saved_results import SavedResults
from sluice.etl.verify.tables import only_columns
from sluice.relay.jobs import Job
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import TableName, exactly

__all__ = ["create_repair", "recheck_request", "repair_sql", "table_repair"]

_KEYS_PER_CHUNK = 200
"""Rows of a chunk."""
_MAX_KEYS = 20_000
"""A table in which more rows differ is copied as a whole."""


def repair_sql(settings: Settings, summary: VerifySummary) -> Iterator[bytes]:
    """Yield the SQL that makes the downstream's rows what the upstream's were at the checkpoint.

    See `repair_script`; nothing if no row differs. Raises DownstreamError, relay errors, OSError.
    """
    relay = settings.open_relay()
    found = SavedResults(relay.storage, summary.job).apart()
    results = [one for one in summary.unequal if one.name in found and not one.problem]
    last = relay.last()
    if not results or last is None:
        return
    session = MySQLSession(settings.downstream)
    session.connect()
    try:
        repairs = [
            table_repair(session, found[one.name], one.downstream, summary.ts, one.more)
            for one in results
        ]
    finally:
        session.close()
    downstream = settings.downstream
    place = f"{quote_name(downstream.checkpoint_schema)}.{quote_name(downstream.checkpoint_table)}"
    yield from repair_script(summary.ts, (place, last.cluster_id), repairs)


def create_repair(settings: Settings, summary: VerifySummary, by: str) -> Job:
    """Create a backfill of the rows that differ, or of whole tables where these can't be named.

    `by`: the requester. Raises VerifyError if there is nothing to bring, or nowhere to bring it
    from; else as `create_backfill`.
    """
    wrong = [one for one in summary.unequal if not one.problem]
    if not wrong:
        raise VerifyError(
            "no row differs in a table that could be compared: there is nothing to repair",
            hint=(
                "do what the problems ask for: `sluice backfill --table` brings a table that isn't"
                " there"
            ),
        )
    if not settings.upstream.sql_host:
        names = " ".join(f"--table {shlex.quote(one.name)}" for one in wrong[:3])
        raise VerifyError(
            "[upstream] sql-host is missing: a repair is read from TiDB",
            hint=(
                "`sluice verify --repair` prints the SQL that does it without; or have the tables"
                f" beside their own, from snapshot and archive: `sluice restore --until"
                f" {summary.ts} {names}`"
            ),
        )
    _refuse_merged(settings, wrong)
    found = SavedResults(settings.open_relay().storage, summary.job).apart()
    only = {
        one.name: tuple(_key_conditions(found[one.name])) for one in wrong if _is_named(one, found)
    }
    request = BackfillRequest(tuple(exactly(one.name) for one in wrong), only=only)
    return create_backfill(settings, request, by)


def _refuse_merged(settings: Settings, wrong: Iterable[TableResult]) -> None:
    merged = [
        one.name for one in wrong if settings.routes.target(*TableName.parse(one.name)).mixes_rows
    ]
    if merged:
        raise VerifyError(
            f"{', '.join(merged[:3])}: merged with other tables downstream, from which a backfill"
            " can't separate its rows",
            hint=(
                "`sluice verify --repair` prints the SQL that makes these rows right; name the"
                " other tables to have them repaired by a job"
            ),
        )


def recheck_request(summary: VerifySummary) -> VerifyRequest:
    """Return the request after a repair: the tables that differed, verified in the same way."""
    return VerifyRequest(tuple(exactly(one.name) for one in summary.unequal), summary.how)


def _is_named(one: TableResult, found: Mapping[str, RowDiff]) -> bool:
    """Return whether the rows that differ are known one by one, and few enough."""
    apart = found.get(one.name)
    return (
        apart is not None
        and not one.more
        and bool(key_of(apart.table))
        and apart.count <= _MAX_KEYS
    )


def _key_conditions(found: RowDiff) -> Iterator[str]:
    keys = differing_keys(found)
    for first in range(0, keys.num_rows, _KEYS_PER_CHUNK):
        yield condition_of(without_source_column(found.table), keys.slice(first, _KEYS_PER_CHUNK))


def table_repair(
    session: MySQLSession, found: RowDiff, downstream: str, ts: int, more: int = 0
) -> RepairStatements:
    """Return the rows of a table that differ, with the writable columns in `downstream`.

    `downstream` is `schema.table`; `ts` (TSO): when they were compared. Raises DownstreamError.
    """
    schema, name = TableName.parse(downstream)
    place = _downstream_definition(session, found.table, schema, name)
    names = [column.name for column in place.writable_columns]
    return RepairStatements(place, found.gone.select(names), found.come.select(names), ts, more)


def _downstream_definition(session: MySQLSession, table: Table, schema: str, name: str) -> Table:
    """Return the downstream table's definition, without the columns that its server computes."""
    computed = {
        folded(str(column))
        for (column,) in session.query(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND"
            " TABLE_NAME = %s AND COALESCE(GENERATION_EXPRESSION, '') <> ''",
            (schema, name),
        )
    }
    columns = [column for column in table.writable_columns if folded(column.name) not in computed]
    return replace(only_columns(table, columns), schema_name=schema, name=name)
