"""Check that the downstream equals the upstream, so that a snapshot can be read from it.

Each reason against it has a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sluice.etl.changes.rules import (
    ColumnRuleError,
    RouteError,
    RowRuleError,
    with_source_column,
)
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.downstream_catalog import mismatch, read_downstream_tables
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from sluice.etl.settings import Settings
from sluice.relay import RelayLog
from sluice.relay.jobs import Jobs
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import abbreviate

__all__ = [
    "abbreviate_problems",
    "downstream_problems",
    "downstream_table_of",
    "downstream_tables",
    "excluded_problems",
]


def downstream_tables(
    settings: Settings, definitions: SourceSchema, session: MySQLSession
) -> tuple[list[tuple[DownstreamTable, int]], list[str]]:
    """Return where each table of users is downstream, with about how many bytes it has there.

    And why it isn't what it is upstream. `definitions`: the upstream's schema at the checkpoint.
    Raises DownstreamError.
    """
    problems: list[str] = []
    places: list[DownstreamTable] = []
    for table in definitions.of_users().tables:
        if table.is_base_table:
            place = downstream_table_of(settings, table)
            problems.append(place) if isinstance(place, str) else places.append(place)
    held = read_downstream_tables(session, {place.schema for place in places})
    found: list[tuple[DownstreamTable, int]] = []
    for place in places:
        there = held.get((folded(place.schema), folded(place.name)))
        problem = mismatch(place, there, session.address)
        if problem:
            problems.append(problem)
        elif there is not None:
            stored = (column.name for column in place.table.stored_columns if column.generated)
            brings = frozenset(name for name in stored if folded(name) in there.columns)
            found.append((replace(place, brings=brings), there.bytes))
    return found, problems


def downstream_problems(
    settings: Settings, relay: RelayLog, definitions: SourceSchema
) -> list[str]:
    """Return why rows of the downstream may be others than the upstream's at the checkpoint."""
    return [
        *excluded_problems(settings, relay, definitions.ts),
        *_repair_problems(relay, definitions),
    ]


def excluded_problems(settings: Settings, relay: RelayLog, ts: int) -> Iterator[str]:
    """Yield what settings and operators have left out or replaced through `ts`, in words."""
    if settings.ignored_ts:
        some = ", ".join(map(str, sorted(settings.ignored_ts)[:5]))
        yield f"[filter] ignore-txn-commit-ts leaves transactions out: {some}"
    for override in relay.overrides.list(through_ts=ts):
        yield (
            f"an operator decided that the downstream is another since {override.commit_ts}:"
            f" {override}"
        )


def _repair_problems(relay: RelayLog, definitions: SourceSchema) -> Iterator[str]:
    jobs, names = (
        Jobs.for_pipeline(relay),
        {table.id: table.full_name for table in definitions.tables},
    )
    for mending in relay.aligned_chunks.repairs():
        if not jobs.is_over(mending.job):
            some = ", ".join(
                names.get(table_id, f"table {table_id}") for table_id in mending.tables[:5]
            )
            yield (
                f"rows of {some} may be missing until the job {mending.job} has brought them: wait"
                " for it"
            )


def downstream_table_of(
    settings: Settings, table: Table, *, selected_too: bool = False
) -> DownstreamTable | str:
    """Return where a table of the upstream is downstream.

    Or in words why no table there has its rows and no others. `selected_too`: also one that has
    those alone which row rules select, or without columns that rules leave out, for callers that
    ask the upstream for the rest (`Filter.row_selection`; the result's `table` lacks the columns).
    """
    filters, schema, name = settings.filters, table.schema_name, table.name
    if not filters.wants_table(schema, name):
        return f"{table.full_name} isn't downstream: {filters.reason(schema, name)}"
    if filters.leaves_changes_out(schema, name):
        return f"{table.full_name}: [filter] leaves some of its changes out"
    if not selected_too and (rules := filters.row_rules(schema, name)):
        return f"{table.full_name}: {rules[0].text} leaves some of its rows out"
    if not selected_too and (columns := filters.column_rules(schema, name)):
        return f"{table.full_name}: {columns[0].effect}"
    if selected_too:
        try:
            filters.row_selection(table)
            table = filters.narrowed(table)
        except (ColumnRuleError, RowRuleError) as error:
            return str(error)
    try:
        target = settings.routes.target(schema, name)
    except RouteError as error:
        return str(error)
    if target.mixes_rows or (target.is_merged and not selected_too):
        return f"{table.full_name} is merged with other tables downstream: {target.sources}"
    try:
        return DownstreamTable(with_source_column(table, target), target.schema, target.table)
    except RouteError as error:
        return str(error)


def abbreviate_problems(problems: Sequence[str]) -> str:
    """Return the first few, a line each."""
    return abbreviate(problems, separator="\n")
