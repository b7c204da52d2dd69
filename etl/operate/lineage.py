"""Name the tables that a pipeline reads and writes, as OpenLineage names datasets.

It asks neither the upstream nor the downstream: which tables changed is in the measures, how they
are defined in the newest windows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sluice.errors import SluiceError
from sluice.etl.changes.conditions import parse_value, value_columns
from sluice.etl.changes.masks import Mask
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import added_columns, with_history_columns
from sluice.etl.downstream.ddl import column_type
from sluice.etl.settings import File, Kafka, Settings
from sluice.relay import RelayLog
from sluice.relay.aligned_chunks import COMPARE
from sluice.relay.jobs import Jobs
from sluice.relay.measures import CounterStore
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import TableName

__all__ = [
    "ColumnSource",
    "Dataset",
    "Lineage",
    "lineage_of_job",
    "lineage_since",
    "upstream_namespace",
]

MAX_TABLES = 200
"""An event with more is larger than what catalogues take: the tables that changed last stay."""
_READ_TIMEOUT_S = 2.0
"""Airflow waits for an event before it ends the task's process."""
_COPYING = ("backfill", "bootstrap")
"""Kinds of jobs that write TiDB's rows downstream."""
_KAFKA_PORT, _PD_PORT = 9092, 2379


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """The column of a table upstream from which one downstream has its values.

    `how` is "" where values are as upstream; else how they are changed, for people.
    """

    namespace: str
    name: str
    column: str
    how: str = ""
    is_masked: bool = False


@dataclass(slots=True)
class Dataset:
    """A table, a topic or a folder, by OpenLineage's names.

    `columns`: SQL types by column, none where they aren't known; `sources`: where the columns'
    values come from.
    """

    namespace: str
    name: str
    columns: dict[str, str] = field(default_factory=dict)
    sources: dict[str, list[ColumnSource]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lineage:
    """What was read and what was written; `left_out`: the number of tables beyond `MAX_TABLES`."""

    inputs: list[Dataset]
    outputs: list[Dataset]
    left_out: int = 0


def lineage_since(settings: Settings, since_ms: int) -> Lineage:
    """Return the lineage of the tables that applying changed since then (Unix ms).

    Tables whose definition isn't in the newest windows have no columns. Raises RelayError, OSError.
    """
    relay = settings.open_relay()
    counts = CounterStore(relay, settings.downstream_name).tables()
    changed = sorted(
        (name for name, count in counts.items() if count.last_ms >= since_ms),
        key=lambda name: -counts[name].last_ms,
    )
    return _lineage(settings, relay, changed)


def lineage_of_job(settings: Settings, job: str) -> Lineage:
    """Return the lineage of the tables that a job copied; empty for one that copies none.

    Raises RelayError, OSError.
    """
    relay = settings.open_relay()
    status = Jobs.for_pipeline(relay).get(job).status()
    if status.spec.kind not in _COPYING or status.spec.asked.get("mode") == COMPARE:
        return Lineage([], [])
    return _lineage(settings, relay, sorted(status.progress.tables))


def _lineage(settings: Settings, relay: RelayLog, names: Sequence[str]) -> Lineage:
    shown = [name for name in map(_parsed, names[:MAX_TABLES]) if name is not None]
    tables = _definitions(relay, {str(name) for name in shown})
    last = relay.last()
    inputs: list[Dataset] = []
    outputs: dict[tuple[str, str], Dataset] = {}
    for name in sorted(shown):
        found = _pair(settings, name, tables.get(str(name)), last.cluster_id if last else 0)
        if found is None:
            continue
        inputs.append(found[0])
        target = found[1]
        there = outputs.setdefault((target.namespace, target.name), target)
        if there is not target:  # merged tables, or several in one topic
            _merge(there, target)
    return Lineage(inputs, list(outputs.values()), max(0, len(names) - MAX_TABLES))


def upstream_namespace(settings: Settings) -> str:
    """Return the namespace of TiDB's tables: where it serves SQL, or PD where that isn't set."""
    upstream = settings.upstream
    if upstream.sql_host:
        return f"tidb://{_host(upstream.sql_host)}:{upstream.sql_port}"
    first = upstream.pd_urls.split(",")[0].strip()
    return f"tidb://{_address(first, _PD_PORT)}"


def _target(settings: Settings, name: TableName, cluster_id: int) -> tuple[str, str]:
    """Return namespace and name of where a table, named as downstream, goes."""
    match settings.target:
        case File(dir=folder):
            return "file", folder
        case Kafka() as kafka:
            topic = kafka.message_format.routing.topic_of(name) or f"{cluster_id}_obinlog"
            return f"kafka://{_address(kafka.brokers.split(',')[0].strip(), _KAFKA_PORT)}", topic
        case target:
            return f"mysql://{_host(target.host)}:{target.port}", str(name)


def _pair(
    settings: Settings, name: TableName, table: Table | None, cluster_id: int
) -> tuple[Dataset, Dataset] | None:
    """Return a table's dataset upstream and downstream; None if the rules no longer want it."""
    if not settings.filters.wants_table(*name):
        return None
    try:
        routed = settings.routes.target(*name)
        shaped = None if table is None else settings.filters.narrowed(table)
    except SluiceError:  # applying stops at such rules, with the reason
        return None
    source = Dataset(upstream_namespace(settings), str(name))
    place = _target(settings, TableName(routed.schema, routed.table), cluster_id)
    target = Dataset(*place)
    if table is not None and shaped is not None:
        source.columns = {column.name: column_type(column) for column in _visible(table)}
        if not isinstance(settings.target, File):
            _describe(settings, source, target, shaped)
    return source, target


def _describe(settings: Settings, source: Dataset, target: Dataset, shaped: Table) -> None:
    """Set the columns of the target, and where their values come from."""
    rules = settings.filters.column_rules(shaped.schema_name, shaped.name)
    added = {name: made for name, (made, _) in added_columns(rules, shaped).items()}
    for column in _visible(with_history_columns(shaped)):
        target.columns[column.name] = column_type(column)
        if column.name in added:
            text = added[column.name].value
            read = {folded(one.name) for one in value_columns(parse_value(text))}
            target.sources[column.name] = [
                ColumnSource(source.namespace, source.name, name, text)
                for name in source.columns
                if folded(name) in read
            ]
        elif column.source_name in source.columns:
            how = f"mask {Mask.from_text(column.mask)}" if column.mask else ""
            target.sources[column.name] = [
                ColumnSource(
                    source.namespace, source.name, column.source_name, how, bool(column.mask)
                )
            ]


def _merge(there: Dataset, other: Dataset) -> None:
    for name, type_ in other.columns.items():
        there.columns.setdefault(name, type_)
        there.sources.setdefault(name, []).extend(other.sources.get(name, []))


def _visible(table: Table) -> Iterator[Column]:
    return (column for column in table.columns if column.public and not column.hidden)


def _definitions(relay: RelayLog, wanted: Collection[str]) -> dict[str, Table]:
    """Return the newest definitions of tables by full name, as far as they are found in time."""
    found: dict[str, Table] = {}
    last, end = relay.last(), time.monotonic() + _READ_TIMEOUT_S
    for window in relay.backwards(last.hi) if last is not None else ():
        if len(found) == len(wanted) or time.monotonic() > end:
            break
        schema = RecordedSchema.from_window(window)
        for tables in (*(ddl.effect.tables for ddl in reversed(schema.ddls)), schema.tables):
            for table in tables.values():
                if table is not None and table.full_name in wanted:
                    found.setdefault(table.full_name, table)
    return found


def _parsed(text: str) -> TableName | None:
    """Return the name of a counted table, None for those that are counted together."""
    try:
        return TableName.parse(text)
    except SluiceError:
        return None


def _address(text: str, port: int) -> str:
    """Return HOST:PORT of a URL or an address."""
    url = urlsplit(text if "//" in text else f"//{text}")
    return f"{_host(url.hostname or '')}:{url.port or port}"


def _host(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
