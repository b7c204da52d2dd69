"""A TiDB that keeps its tables in plain Python, and sends binlogs and DDL jobs as a real one does.

Every statement changes the model first and says then what TiDB would have sent. A DDL job takes
several schema versions; what other sessions write meanwhile is written with the version that they
know (`Transaction.version`).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.etl.changes.rules import Route
from sluice.tidb.tikv import MvccWrite
from tests.judge import wire
from tests.judge.kinds import Kind, varchar
from tests.judge.tables import Row, Table, named, quoted

_INSERT, _UPDATE, _DELETE = 0, 1, 4
_DROP_TABLE, _EXCHANGE = 4, 42
_SQL_MODE = 1436549152
_BEGIN = 1_795_310_000_000 << 18
SOURCE = "its source"
"""Column that names the upstream's table of each row."""
MERGED = "merged", "all"
"""Schema and table that several tables are downstream."""
_SHOWN = 2_000
"""Characters of a row in the story."""

SOURCE_KIND = SOURCE, varchar(133)

Name = tuple[str, str]
"""Schema and table, either of which may hold a dot."""
State = dict[Name, tuple[dict[str, Kind], Counter[tuple[Any, ...]]]]
"""What a downstream shall hold: by name, the columns in order and the rows as a multiset."""


def _spelled(part: str) -> str:
    """Return a part of a name in backquotes, if it could be read as another one."""
    plain = part and "." not in part and not part.startswith("`")
    return part if plain else "`" + part.replace("`", "``") + "`"


@dataclass(frozen=True)
class Shown:
    """A table at a moment, its rows among it, and its upstream name."""

    name: Name
    table: Table
    is_merged: bool = False


@dataclass(frozen=True)
class Alteration:
    """What a DDL job made of a table: what it was before, None for a new one.

    `exchanged`: the upstream name of the table with which it exchanged rows.
    """

    job: int
    ts: int
    before: Shown | None
    after: Shown
    exchanged: Name | None = None


@dataclass(frozen=True)
class RowEvent:
    """A change of a row, by its table's id: the values before and after, by column id."""

    ts: int
    table_id: int
    old: dict[int, Any] | None
    new: dict[int, Any] | None


@dataclass
class _Mutation:
    inserted: list[bytes] = field(default_factory=list)
    updated: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)

    def to_bytes(self, table_id: int) -> bytes:
        out = wire.field(1, table_id)
        out += b"".join(wire.field(2, row) for row in self.inserted) + b"".join(
            wire.field(3, row) for row in self.updated
        )
        return (
            out
            + b"".join(wire.field(6, row) for row in self.deleted)
            + b"".join(wire.field(7, kind) for kind in self.sequence)
        )


@dataclass
class Upstream:
    """`new_collation`: whether collations mean anything (False: clusters bootstrapped before TiDB
    6.0). `binlogs`: what TiDB sent to its pump, in order. `jobs`: the DDL job history.
    """

    rng: random.Random
    new_collation: bool = True
    schemas: dict[int, str] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)
    binlogs: list[bytes] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    diffs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By schema version: the job type, schema and table it is about, as TiKV keeps it."""
    since: dict[int, int] = field(default_factory=dict)
    """By schema version: from which TSO on TiKV has it."""
    steps: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """By schema version: the schema id and TableInfo that a job's step left before its last one."""
    states: list[tuple[int, State]] = field(default_factory=list)
    """(commit timestamp, state) at the moments that were noted."""
    commits: list[tuple[int, bool]] = field(default_factory=list)
    """(commit timestamp, whether it is a DDL's) of all that was sent."""
    writes: dict[bytes, list[MvccWrite]] = field(default_factory=dict)
    """What TiKV has of rows in partitions, by key."""
    places: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By start_ts and table: the partition of each row change, 0 without partitions."""
    merged: list[Table] = field(default_factory=list)
    """Tables that are one downstream; they aren't among `tables`."""
    by_source: bool = False
    """Whether a column keeps rows of merged tables apart, so that they may have the same keys."""
    targets: dict[int, str] = field(default_factory=dict)
    """By schema id: the name that a schema has downstream, if it is another one."""
    shown: list[tuple[Shown, ...]] = field(default_factory=list)
    """The tables at each of the moments of `states`."""
    alterations: list[Alteration] = field(default_factory=list)
    events: list[RowEvent] = field(default_factory=list)
    """Changes of rows, but of those in partitions that are gone."""
    known: dict[int, Shown] = field(default_factory=dict)
    """Tables as the last DDL of each left them."""
    story: list[str] = field(default_factory=list)
    """The history in words, a line a change."""
    version: int = 40
    ts: int = _BEGIN
    committed: int = 0
    next_id: int = 80

    def new_id(self) -> int:
        """TiDB's global id, for schemas, tables, partitions and jobs."""
        self.next_id += 1
        return self.next_id

    def tick(self) -> int:
        """A timestamp of PD."""
        self.ts += (self.rng.randint(1, 40) << 18) + self.rng.randint(1, 9)
        return self.ts

    def transaction(self, version: int | None = None, start_ts: int | None = None) -> Transaction:
        """Begin a transaction that knows the schema `version` (default: the newest).

        `start_ts`: it began then.
        """
        return Transaction(self, self.version if version is None else version, start_ts)

    def full_name(self, table: Table) -> Name:
        """As it is called downstream."""
        return self.targets.get(table.schema_id, self.schemas[table.schema_id]), table.name

    def state(self) -> State:
        """What a downstream shall hold now."""
        found = {
            self.full_name(t): ({c.name: c.kind for c in t.columns}, Counter(t.shown()))
            for t in self.tables.values()
        }
        if self.merged:
            rows = Counter(
                (*row, *self.source(self.upstream_name(table)).values())
                for table in self.merged
                for row in table.shown()
            )
            own = {c.name: c.kind for c in self.merged[0].columns}
            found[MERGED] = own | (dict([SOURCE_KIND]) if self.by_source else {}), rows
        return found

    def source(self, name: Name) -> dict[str, bytes]:
        """Return the value of the column that names a merged table, by its name; {} without."""
        return {SOURCE: ".".join(map(_spelled, name)).encode()} if self.by_source else {}

    def routes(self) -> tuple[Route, ...]:
        """The settings' rules that make it so."""
        schemas = (
            Route(re.escape(self.schemas[i]), "", target, "", "a schema")
            for i, target in self.targets.items()
        )
        tables = (
            Route(
                re.escape(self.schemas[t.schema_id]),
                re.escape(t.name),
                *MERGED,
                "a part",
                SOURCE if self.by_source else "",
            )
            for t in self.merged
        )
        return (*tables, *schemas)

    def note(self) -> None:
        """Keep the present state, to be compared at the last commit's timestamp."""
        self.states.append((self.committed, self.state()))
        whole = [(table, False) for table in self.tables.values()]
        whole += [(table, True) for table in self.merged]
        self.shown.append(
            tuple(
                Shown(self.upstream_name(table), _with_rows(table), is_merged)
                for table, is_merged in whole
            )
        )

    def upstream_name(self, table: Table) -> Name:
        """Return as it is called upstream now."""
        return self.schemas[table.schema_id], table.name

    def altered(self, job: int, ts: int, kind: int, about: int, tables: list[Table]) -> None:
        """Keep what a job `about` a table's id made of tables."""
        exchanged = None
        if kind == _EXCHANGE:
            other = self.known.pop(about)
            found = next(t for t in self.tables.values() if self.upstream_name(t) == other.name)
            self.known[found.id] = Shown(other.name, found.shape())
            exchanged = other.name
        for table in {table.id: table for table in tables}.values():
            if kind == _DROP_TABLE:
                self.known.pop(table.id, None)
                continue
            after = Shown(self.upstream_name(table), table.shape())
            before = self.known.get(table.id)
            self.alterations.append(Alteration(job, ts, before, after, exchanged))
            self.known[table.id] = after

    def send(self, prewrite: bytes, commit_rest: bytes, start_ts: int, *, ddl: bool = False) -> int:
        """A Prewrite and its Commit; the commit timestamp."""
        self.binlogs.append(
            wire.field(1, 0) + wire.field(2, start_ts) + wire.field(3, 0) + prewrite
        )
        commit_ts = self.committed = self.tick()
        self.binlogs.append(
            wire.field(1, 1) + wire.field(2, start_ts) + wire.field(3, commit_ts) + commit_rest
        )
        self.commits.append((commit_ts, ddl))
        return commit_ts

    def job(
        self, kind: int, query: str, *, schema_id: int, table_id: int = 0, **more: Any
    ) -> DdlJob:
        """Begin a DDL job; `more` as in DdlJob."""
        return DdlJob(self, kind, query, schema_id, table_id, **more)


class Transaction:
    """Statements of one transaction."""

    def __init__(self, upstream: Upstream, version: int, start_ts: int | None = None) -> None:
        self._upstream = upstream
        self.version = version
        self._start_ts = upstream.tick() if start_ts is None else start_ts
        self._keys: set[bytes] = set()
        self._mutations: dict[int, _Mutation] = {}
        self._events: list[tuple[int, dict[int, Any] | None, dict[int, Any] | None]] = []

    def insert(self, table: Table, values: dict[str, Any], partition: int | None = None) -> bool:
        """INSERT; False if a unique key or the partitions refuse it.

        `partition`: where a session with another schema puts it.
        """
        values = table.with_generated(values)
        place = table.place(values) if partition is None else partition
        if place is None or not table.fits(values, self._upstream.new_collation):
            return False
        row = Row({c.id: values[c.name] for c in table.columns}, table.next_rowid, place)
        table.next_rowid += 1
        table.rows.append(row)
        self._events.append((table.id, None, dict(row.values)))
        self.log_insert(table, row)
        return True

    def delete(self, table: Table, row: Row) -> None:
        """DELETE."""
        table.rows.remove(row)
        self._events.append((table.id, dict(row.values), None))
        self.log_delete(table, row)

    def update(self, table: Table, row: Row, values: dict[str, Any]) -> bool:
        """UPDATE; False if a unique key or the partitions refuse it.

        A changed handle or partition is a DELETE and an INSERT.
        """
        old = table.named_values(row)
        new = table.with_generated(old | values)
        place = table.place(new)
        if place is None or not table.fits(new, self._upstream.new_collation, row):
            return False
        moves = place != row.partition and bool(table.partitions)
        if table.handle_kind != "heap":
            assert table.primary
            moves = moves or any(old[name] != new[name] for name in table.primary.columns)
        if moves:
            self.delete(table, row)
            return self.insert(table, new)
        before, was = table.image(row), replace(row, values=dict(row.values))
        row.values.update({c.id: new[c.name] for c in table.columns})
        self._events.append((table.id, was.values, dict(row.values)))
        self._log_update(table, before, row)
        seconds = [table.second_place(each, table.named_values(each)) for each in (was, row)]
        if seconds[0] == seconds[1] != 0:
            self._log_update(table, before, replace(row, partition=seconds[0]))
        elif seconds[0]:
            self._log_insert(table, replace(row, partition=seconds[1]))
            self._log_delete(table, replace(was, partition=seconds[0]))
        return True

    def swap(self, table: Table, rows: list[Row], name: str) -> None:
        """Rows hand the values of a column with a unique key on in a ring, in one statement."""
        column = table.column(name).id
        images = [table.image(row) for row in rows]
        values = [row.values[column] for row in rows]
        for row, value in zip(rows, [*values[1:], values[0]], strict=True):
            row.values[column] = value
        for row, image in zip(rows, images, strict=True):
            row.values.update(
                {
                    c.id: v
                    for c in table.columns
                    for v in [table.with_generated(table.named_values(row))[c.name]]
                }
            )
            self._log_update(table, image, row)

    def _log_update(self, table: Table, before: bytes, row: Row) -> None:
        mutation = self._mutation(table)
        mutation.updated.append(before + table.image(row))
        mutation.sequence.append(_UPDATE)
        self._tell("update to", table, row)

    def _tell(self, what: str, table: Table, row: Row) -> None:
        self._upstream.places.setdefault((self._start_ts, table.id), []).append(row.partition)
        if row.partition:
            self._keys.add(table.key(row, self._upstream.new_collation))
        text = (
            f"  {what} {table.name} (id {table.id}), schema version {self.version}:"
            f" {str(table.named_values(row))[:_SHOWN]}, row id {row.handle}"
        )
        self._upstream.story.append(text)

    def log_insert(self, table: Table, row: Row) -> None:
        """Say that a row was inserted, whatever becomes of it."""
        self._log_insert(table, row)
        if second := table.second_place(row, table.named_values(row)):
            self._log_insert(table, replace(row, partition=second))

    def _log_insert(self, table: Table, row: Row) -> None:
        mutation = self._mutation(table)
        mutation.inserted.append(table.inserted(row, self._upstream.new_collation))
        mutation.sequence.append(_INSERT)
        self._tell("insert", table, row)

    def log_delete(self, table: Table, row: Row) -> None:
        """Say that a row was deleted, whether it is still there or not."""
        self._log_delete(table, row)
        if second := table.second_place(row, table.named_values(row)):
            self._log_delete(table, replace(row, partition=second))

    def _log_delete(self, table: Table, row: Row) -> None:
        mutation = self._mutation(table)
        mutation.deleted.append(table.image(row))
        mutation.sequence.append(_DELETE)
        self._tell("delete", table, row)

    def commit(self) -> int:
        """Send it, unless nothing was changed; the commit timestamp or 0."""
        if not self._mutations:
            return 0
        value = wire.field(1, self.version) + b"".join(
            wire.field(2, m.to_bytes(i)) for i, m in self._mutations.items()
        )
        key = b"t\x80" + self._start_ts.to_bytes(8, "big")
        rest = wire.field(4, key)
        tail = wire.field(7, 0) + wire.field(8, 0)
        commit_ts = self._upstream.send(
            rest + wire.field(5, value) + tail, rest + tail, self._start_ts
        )
        self._upstream.events += [RowEvent(commit_ts, *event) for event in self._events]
        for key in self._keys:
            self._upstream.writes.setdefault(key, []).append(
                MvccWrite(0, self._start_ts, commit_ts)
            )
        self._upstream.story.append(f"began at {self._start_ts}, committed at {commit_ts}")
        return commit_ts

    def _mutation(self, table: Table) -> _Mutation:
        return self._mutations.setdefault(table.id, _Mutation())


class DdlJob:
    """A DDL job: `state` moves it on by one schema version, `finish` puts it into history and sends
    its binlog.
    """

    def __init__(
        self,
        upstream: Upstream,
        kind: int,
        query: str,
        schema_id: int,
        table_id: int,
        typed: str = "",
        zone: tuple[str, int] = ("UTC", 0),
    ) -> None:
        """`query`: TiDB's normal form; `typed`: what the user wrote, if different."""
        self._upstream = upstream
        self._id = upstream.new_id()
        self._kind, self._query, self._typed = kind, query + ";", typed or query
        self._schema_id, self._table_id = schema_id, table_id
        self._zone = zone
        self._start_ts = upstream.tick()

    def state(self) -> int:
        """One state further; the schema version that sessions may know from now on."""
        upstream = self._upstream
        upstream.version += 1
        upstream.since[upstream.version] = upstream.tick()
        upstream.diffs[upstream.version] = {
            "version": upstream.version,
            "type": self._kind,
            "schema_id": self._schema_id,
            "table_id": self._table_id,
            "old_table_id": 0,
            "old_schema_id": 0,
            "regenerate_schema_map": False,
            "affected_options": None,
        }
        return upstream.version

    def announce(self, schema_state: int) -> None:
        """The extra binlog in the midst of DROP COLUMN."""
        self._send(schema_state)

    def finish(
        self,
        table: Table | None = None,
        *,
        schema: dict[str, Any] | None = None,
        tables: list[Table] | None = None,
        args: Any = None,
        schema_state: int = 5,
        version: int = 0,
    ) -> None:
        """The last state: `table` as the job leaves it, or `schema` (DBInfo), or several `tables`.

        `version`: a state that the job reached before, 0 for a new one. A multi-schema change ends
        without a new one.
        """
        upstream = self._upstream
        if version and table:
            upstream.steps[version] = table.schema_id, table.info()
        version = version or self.state()
        infos = [t.info() for t in tables or ()]
        info = table.info() if table else infos[-1] if infos else None
        finished = self._send(schema_state)
        upstream.altered(
            self._id, finished, self._kind, self._table_id, tables or ([table] if table else [])
        )
        upstream.story.append(
            f"job {self._id}, schema version {version}, table {self._table_id}, at {finished}:"
            f" {self._query}"
        )
        name = info["name"]["L"] if info else ""
        self._keep(
            version,
            schema_state,
            name,
            {"DBInfo": schema, "TableInfo": info, "MultipleTableInfos": infos or None},
            args,
            finished + 1,
        )

    def change_nothing(self, schema_state: int = 0) -> None:
        """End as a job does that finds its change made: it succeeds, without a schema version."""
        finished = self._send(schema_state)
        self._upstream.story.append(
            f"job {self._id} changed nothing, table {self._table_id}, at {finished}: {self._query}"
        )
        self._keep(
            0,
            schema_state,
            "",
            {"DBInfo": None, "TableInfo": None, "MultipleTableInfos": None},
            None,
            finished + 1,
        )

    def _keep(
        self,
        version: int,
        schema_state: int,
        name: str,
        left: dict[str, Any],
        args: Any,
        finished_ts: int,
    ) -> None:
        """Put the job into the history."""
        upstream = self._upstream
        upstream.jobs.append(
            {
                "id": self._id,
                "type": self._kind,
                "schema_id": self._schema_id,
                "table_id": self._table_id,
                "schema_name": upstream.schemas.get(self._schema_id, "").lower(),
                "table_name": name,
                "state": 6,
                "warning": None,
                "err": None,
                "err_count": 0,
                "row_count": 0,
                "raw_args": args,
                "schema_state": schema_state,
                "snapshot_ver": 0,
                "real_start_ts": self._start_ts,
                "start_ts": self._start_ts,
                "dependency_id": 0,
                "query": self._typed,
                "version": 1,
                "reorg_meta": {
                    "sql_mode": _SQL_MODE,
                    "warnings": {},
                    "warnings_count": {},
                    "location": {"name": self._zone[0], "offset": self._zone[1]},
                    "reorg_tp": 1,
                    "is_dist_reorg": False,
                },
                "multi_schema_info": None,
                "priority": 0,
                "seq_num": len(upstream.jobs) + 1,
                "binlog": {
                    "SchemaVersion": version,
                    "FinishedTS": finished_ts,
                    **left,
                },
            }
        )

    def _send(self, schema_state: int) -> int:
        key = wire.field(4, b"m" + self._id.to_bytes(8, "big"))
        tail = (
            wire.field(6, self._query.encode())
            + wire.field(7, self._id)
            + wire.field(8, schema_state)
        )
        return self._upstream.send(key + tail, key + tail, self._upstream.tick(), ddl=True)


def _with_rows(table: Table) -> Table:
    shape = table.shape()
    shape.rows = [replace(row, values=dict(row.values)) for row in table.rows]
    return shape


def schema_info(schema_id: int, name: str) -> dict[str, Any]:
    """DBInfo as JSON."""
    return {
        "id": schema_id,
        "db_name": named(name),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "state": 5,
        "policy_ref_info": None,
    }


def create_schema(upstream: Upstream, name: str) -> int:
    """CREATE DATABASE; its id."""
    schema_id = upstream.new_id()
    job = upstream.job(1, f"CREATE DATABASE {quoted(name)}", schema_id=schema_id)
    upstream.schemas[schema_id] = name
    job.finish(schema=schema_info(schema_id, name))
    return schema_id


def create_table(upstream: Upstream, table: Table, query: str = "") -> None:
    """CREATE TABLE, or another statement that makes it."""
    query = query or f"CREATE TABLE {quoted(table.name)} {table.sql()}"
    job = upstream.job(3, query, schema_id=table.schema_id, table_id=table.id)
    upstream.tables[table.id] = table
    job.finish(table)
