"""Keep the upstream's schema at the commit timestamp that the capture has reached.

TiDB writes each definition under a meta key in the transaction that changes it, and TiKV sends
these keys like rows. So the definitions need no DDL job to be understood: the tracker reads them
all at its first timestamp, and then applies the keys in commit order. A row at T is read by the
definitions of T - 1, since a transaction may share its commit_ts with a DDL.

A row's key has a physical id, which is the table's or that of a partition. Only partitions in
`definitions` count: while a table is reorganized, TiDB also writes into those being added, and no
reader sees these rows before they are there.
"""

from __future__ import annotations

import itertools
import logging
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sluice.errors import SluiceError
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.history import SYSTEM_SCHEMAS
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import MAX_USER_TABLE_ID, Schema, Table, parse_object
from sluice.tidb.stored_rows import StoredRowConverter
from sluice.tidb.tikv.meta import (
    read_definitions,
    read_last_ddl_jobs,
    read_running_jobs,
    read_schema_diff,
    read_schema_version,
    split_key,
)

if TYPE_CHECKING:
    from sluice.tidb.tikv import TiKVClient

log = logging.getLogger(__name__)

_IS_PARTITIONED = re.compile(rb'"partition":\s*\{')
_MAX_CONVERTERS = 10_000
"""Tables kept parsed, at some 10 KB each."""
_MAX_TRANSACTION_SPAN = tso.span(86_400_000)
"""TiDB commits no transaction that began more than a day before."""
_PARTITION_LISTS = ("definitions", "adding_definitions", "dropping_definitions")


class UnknownTableError(SluiceError):
    """A row of a table that no schema key has defined.

    Names the table id and the commit timestamp.
    """

    hint = "report it, then start the capture again from the checkpoint: it reads the schema again"


@dataclass(frozen=True, slots=True)
class MetaChange:
    """A change of a schema key; `value` is b"" if the key was deleted."""

    name: bytes
    kind: str
    field: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class _Definition:
    """A table's TableInfo, compressed: TiDB's JSON of 40 columns is 27 KB."""

    schema_id: int
    packed: bytes
    physical_ids: tuple[int, ...]

    def info(self) -> dict[str, Any]:
        return parse_object(zlib.decompress(self.packed), "a table's definition")


class SchemaTracker:
    """Hold the definitions at one timestamp. Used by one thread."""

    def __init__(self, definitions: Iterable[tuple[bytes, bytes]], schema_version: int) -> None:
        """Take in keys and values of DBInfos and TableInfos, the DBInfos first."""
        self.schema_version = schema_version
        self._schemas: dict[int, Schema] = {}
        self._tables: dict[int, _Definition] = {}
        self._logical: dict[int, int] = {}
        self._ignored: set[int] = set()
        """Physical ids whose rows no reader sees: of partitions being added or dropped, of tables
        that are gone.
        """
        self._converters: dict[int, StoredRowConverter] = {}
        self._system: set[int] = set()
        self._exchanged: dict[int, int] = {}
        """The commit_ts of EXCHANGE PARTITION by the id of the partition, a table's until then."""
        self._last_exchange_ts = 0
        self.apply(
            [
                change
                for key, value in definitions
                if (change := meta_change(key, value)) is not None
            ]
        )

    @classmethod
    def read(cls, tikv: TiKVClient, ts: int) -> Self:
        """Read the definitions as of a TSO, and which partitions were exchanged shortly before.

        Raises TiKVError, SchemaError, HistoryError.
        """
        schema = cls(read_definitions(tikv, ts), _known_version(tikv, ts))
        if any(physical_id != table_id for physical_id, table_id in schema._logical.items()):
            schema._read_exchanges(tikv, ts)
        return schema

    def __len__(self) -> int:
        return len(self._tables)

    def apply(self, changes: Iterable[MetaChange], commit_ts: int = 0) -> None:
        """Apply the schema keys of one commit timestamp. Raises SchemaError."""
        before = set(self._tables)
        tables: list[MetaChange] = []
        for change in changes:
            if change.name == b"DBs":
                self._apply_schema(change)
            elif change.name.startswith(b"DB:"):
                tables.append(change)
            elif change.name.startswith(b"Diff:") and change.value:
                self.schema_version = max(self.schema_version, int(change.name[5:]))
        # A table that moves to another database is deleted there and put here under the same id.
        for change in sorted(tables, key=lambda change: bool(change.value)):
            self._apply_table(change)
        for table_id in before - self._tables.keys():
            if table_id in self._logical:
                self._exchanged[table_id] = self._last_exchange_ts = commit_ts

    def exchanged_since(self, start_ts: int) -> frozenset[int]:
        """Return the partitions that were tables of their own at `start_ts`.

        TiDB lets a transaction that began then write rows there that belong elsewhere.
        """
        if start_ts >= self._last_exchange_ts:
            return frozenset()
        return frozenset(i for i, ts in self._exchanged.items() if start_ts < ts)

    def _read_exchanges(self, tikv: TiKVClient, ts: int) -> None:
        """Find the exchanges before the tracker's begin that a later commit may lie across.

        A job that is done runs until it is in the history. Its end is behind its commit_ts.
        """
        running = map(DdlHistoryJob.from_json, read_running_jobs(tikv, ts))
        finished = map(DdlHistoryJob.from_json, read_last_ddl_jobs(tikv, ts))
        for job in itertools.chain(running, finished):
            if 0 < job.finished_ts < ts - _MAX_TRANSACTION_SPAN:
                return
            # Of a job that has yet to exchange them, the table still has its id.
            owner = self._logical.get(job.table_id, job.table_id)
            if job.type == Action.EXCHANGE_PARTITION and owner != job.table_id:
                exchanged_ts = self._exchanged.setdefault(job.table_id, job.finished_ts or ts)
                self._last_exchange_ts = max(self._last_exchange_ts, exchanged_ts)

    def converter(self, physical_id: int, commit_ts: int) -> StoredRowConverter | None:
        """Return what converts the rows of a table or partition; None if they aren't replicated.

        Raises UnknownTableError, SchemaError.
        """
        if physical_id in self._system or physical_id > MAX_USER_TABLE_ID:
            return None
        table_id = self._logical.get(physical_id)
        if table_id is None:
            if physical_id in self._ignored:
                return None
            raise UnknownTableError(
                f"a row at commit_ts {commit_ts} belongs to table {physical_id}, which isn't known"
            )
        found = self._converters.get(table_id)
        if found is None:
            if len(self._converters) >= _MAX_CONVERTERS:
                self._converters.clear()
            found = self._converters[table_id] = StoredRowConverter(self._table(table_id))
        return found

    def table(self, table_id: int) -> Table | None:
        """Return a table by its logical id; None without such a table."""
        return self._table(table_id) if table_id in self._tables else None

    def _table(self, table_id: int) -> Table:
        definition = self._tables[table_id]
        schema = self._schemas.get(definition.schema_id)
        return Table.from_tidb(
            definition.info(), definition.schema_id, schema.name if schema else ""
        )

    def _apply_schema(self, change: MetaChange) -> None:
        if not change.field.startswith(b"DB:"):
            return
        schema_id = int(change.field[3:])
        if change.value:
            self._schemas[schema_id] = Schema.from_tidb(
                parse_object(change.value, f"database {schema_id}")
            )
        else:
            self._schemas.pop(schema_id, None)

    def _apply_table(self, change: MetaChange) -> None:
        if not change.field.startswith(b"Table:"):
            return  # a counter of row ids or of a sequence
        schema_id, table_id = int(change.name[3:]), int(change.field[6:])
        known = self._tables.get(table_id)
        if known is not None:
            if not change.value and known.schema_id != schema_id:
                return
            self._forget(table_id, known)
        if not change.value:
            return
        live, hidden = _physical_ids(table_id, change.value)
        self._tables[table_id] = _Definition(
            schema_id, zlib.compress(change.value, 1), (*live, *hidden)
        )
        self._logical |= dict.fromkeys(live, table_id)
        self._ignored -= set(live)
        self._ignored |= set(hidden) - self._logical.keys()
        schema = self._schemas.get(schema_id)
        if schema is not None and schema.name.lower() in SYSTEM_SCHEMAS:
            self._system |= set(live) | set(hidden)

    def _forget(self, table_id: int, known: _Definition) -> None:
        del self._tables[table_id]
        self._converters.pop(table_id, None)
        for physical_id in known.physical_ids:
            if self._logical.get(physical_id, table_id) == table_id:
                self._logical.pop(physical_id, None)
                self._ignored.add(physical_id)


def _known_version(tikv: TiKVClient, ts: int) -> int:
    """Return the last schema version of which TiKV says at a TSO what it changed.

    TiDB commits the number in a transaction of its own, before the change.
    """
    version = read_schema_version(tikv, ts)
    return version - 1 if version and read_schema_diff(tikv, version, ts) is None else version


def meta_change(key: bytes, value: bytes) -> MetaChange | None:
    """Return a change of a key that says something of the schema; None for other keys."""
    found = split_key(key)
    if found is None:
        return None
    name, kind, field = found
    if kind == "h" and (
        name == b"DBs" or (name.startswith(b"DB:") and field.startswith(b"Table:"))
    ):
        return MetaChange(name, kind, field, value)
    if kind == "s" and name.startswith(b"Diff:"):
        return MetaChange(name, kind, field, value)
    return (
        MetaChange(name, kind, field, value)
        if name.startswith(b"DDLJob") and kind in "hl"
        else None
    )


def _physical_ids(table_id: int, info: bytes) -> tuple[list[int], list[int]]:
    """Return the ids under which readers find rows of a table, and those of changing partitions.

    Changing partitions are those that a running DDL job adds or drops.
    """
    if not _IS_PARTITIONED.search(info):
        return [table_id], []
    partition = parse_object(info, f"table {table_id}").get("partition")
    if not partition or not partition.get("enable", True):
        return [table_id], []
    live, *others = ([int(d["id"]) for d in partition.get(name) or ()] for name in _PARTITION_LISTS)
    return live, [i for ids in others for i in ids if i not in live]
