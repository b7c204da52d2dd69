"""Why the downstream isn't what the upstream is, so that no base can be read from it: each reason by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from etl.base.downstream_rows import DownstreamTable
from etl.copy.definitions import Definitions
from etl.downstream import MySQLSession
from etl.rules import RouteError
from etl.settings import Settings
from relay import Appointments, RelayLog
from relay.jobs import Jobs
from upstream.schema import Table

__all__ = ["downstream_tables", "hindrances"]

_TABLES = (
    "SELECT t.TABLE_SCHEMA, t.TABLE_NAME, t.ENGINE, COALESCE(e.TRANSACTIONS, 'YES'), COALESCE(t.DATA_LENGTH, 0) FROM"
    " information_schema.TABLES t LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA"
    " IN ({names})"
)
_COLUMNS = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN ({names})"
)


@dataclass(frozen=True, slots=True)
class _Held:
    """A table that is there downstream; `bytes` as the server's statistics say."""

    engine: str
    has_transactions: bool
    bytes: int
    columns: frozenset[str]


def downstream_tables(
    settings: Settings, definitions: Definitions, session: MySQLSession
) -> tuple[list[tuple[DownstreamTable, int]], list[str]]:
    """Where each table of users is downstream, with about how many bytes it has there; and why it isn't what it is
    upstream. `definitions`: the upstream's schema at the checkpoint. Raises DownstreamError.
    """
    problems: list[str] = []
    places: list[DownstreamTable] = []
    for table in definitions.of_users().tables:
        if table.is_base_table:
            place = _place(settings, table)
            problems.append(place) if isinstance(place, str) else places.append(place)
    held = _held(session, {place.schema for place in places})
    found: list[tuple[DownstreamTable, int]] = []
    for place in places:
        there = held.get((place.schema.lower(), place.name.lower()))
        problem = _unlike(place, there, session.address)
        if problem:
            problems.append(problem)
        elif there is not None:
            found.append((place, there.bytes))
    return found, problems


def hindrances(settings: Settings, relay: RelayLog, definitions: Definitions) -> list[str]:
    """Why rows of the downstream may be others than the upstream's at the checkpoint."""
    return [*_left_out(settings, relay, definitions.ts), *_mended(relay, definitions)]


def _left_out(settings: Settings, relay: RelayLog, ts: int) -> Iterator[str]:
    if settings.ignored_ts:
        some = ", ".join(map(str, sorted(settings.ignored_ts)[:5]))
        yield f"[filter] ignore-txn-commit-ts leaves transactions out: {some}"
    for decision in relay.decisions.list(through_ts=ts):
        yield f"an operator decided that the downstream is another since {decision.commit_ts}: {decision}"


def _mended(relay: RelayLog, definitions: Definitions) -> Iterator[str]:
    jobs, names = Jobs(relay.storage), {table.id: table.full_name for table in definitions.tables}
    for mending in Appointments(relay.storage).mendings():
        if not jobs.is_over(mending.job):
            some = ", ".join(names.get(table_id, f"table {table_id}") for table_id in mending.tables[:5])
            yield f"rows of {some} may be missing until the job {mending.job} has brought them: wait for it"


def _place(settings: Settings, table: Table) -> DownstreamTable | str:
    filters, schema, name = settings.filters, table.schema_name, table.name
    if not filters.wants_table(schema, name):
        return f"{table.full_name} isn't downstream: {filters.reason(schema, name)}"
    if filters.ignored_row_kinds(schema, name) or filters.may_keep_rows(schema, name):
        return f"{table.full_name}: [filter] leaves some of its changes out"
    try:
        target = settings.routes.target(schema, name)
    except RouteError as error:
        return str(error)
    if target.is_merged:
        return f"{table.full_name} is merged with other tables downstream: {target.sources}"
    return DownstreamTable(table, target.schema, target.table)


def _unlike(place: DownstreamTable, there: _Held | None, address: str) -> str | None:
    if there is None:
        return f"{place.full_name} is not on {address}"
    if not there.has_transactions:
        return f"{place.full_name} on {address} is in the storage engine {there.engine}, which has no snapshots"
    missing = [c.name for c in place.table.writable_columns if c.name.lower() not in there.columns]
    if missing:
        return f"{place.full_name} on {address} has no column {', '.join(missing)}"
    return None


def _held(session: MySQLSession, schemas: set[str]) -> Mapping[tuple[str, str], _Held]:
    if not schemas:
        return {}
    names = ", ".join(["%s"] * len(schemas))
    columns: dict[tuple[str, str], set[str]] = {}
    for schema, name, column in session.query(_COLUMNS.format(names=names), sorted(schemas)):
        columns.setdefault(_lower(schema, name), set()).add(str(column).lower())
    return {
        _lower(schema, name): _Held(
            str(engine), str(transactions) == "YES", int(size), frozenset(columns.get(_lower(schema, name), ()))
        )
        for schema, name, engine, transactions, size in session.query(_TABLES.format(names=names), sorted(schemas))
    }


def _lower(schema: object, name: object) -> tuple[str, str]:
    return str(schema).lower(), str(name).lower()


def some(problems: Sequence[str]) -> str:
    """The first few, a line each."""
    more = f"\nand {len(problems) - 10} more" if len(problems) > 10 else ""
    return "\n".join(problems[:10]) + more
