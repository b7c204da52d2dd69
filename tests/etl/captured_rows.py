"""Take transactions of encoded rows through a capture, from TiKV's events to the rows that land.

The rows go into keys and values as TiDB would store them, come as prewrites and commits of several
regions, and pass matcher, sorter, writer and landing's extraction.
"""

from __future__ import annotations

import json
import random
import unicodedata
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa

from sluice.devstack.tidb.change_writer import ChangeWriter
from sluice.devstack.tidb.mvcc_records import Change
from sluice.devstack.tidb.stored_values import Datums
from sluice.etl.landing.extract import RowExtractor
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.matcher import Matcher, MatcherTotals
from sluice.pump_service.capture.run_files import RunFolder
from sluice.pump_service.capture.schema_tracker import SchemaTracker, meta_change
from sluice.pump_service.capture.sorter import CommitSorter
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE
from sluice.tidb import pb
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.codec.datum import BYTES, decode_datum
from sluice.tidb.codec.memcomparable import encode_bytes
from sluice.tidb.codec.row import handle_columns
from sluice.tidb.record_keys import record_key
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.tikv.meta import hash_field_key, table_key
from tests.etl.window_pumps import batch_of
from tests.pump_service.storekit import MemoryStore

_BASE = 1 << 58
"""Added to timestamps: a captured Prewrite is known by their size."""
_Event, _Row = pb.cdc.Event, pb.cdc.Event.Row
_KINDS = {
    INSERT: ("inserted_rows", pb.binlog.Insert),
    UPDATE: ("updated_rows", pb.binlog.Update),
    DELETE: ("deleted_rows", pb.binlog.DeleteRow),
}


class _Open(NamedTuple):
    start_ts: int
    commit_ts: int
    changes: dict[bytes, Change]


class CapturedRows:
    """Keep a capture of tables that `define` names. `rng` decides when what comes, and where."""

    def __init__(self, folder: Path, rng: random.Random, memory_bytes: int = 1 << 20) -> None:
        self._rng = rng
        self._sorter = CommitSorter(RunFolder(folder / "runs"), memory_bytes)
        self._totals = MatcherTotals(self._sorter, memory_bytes)
        self._store = MemoryStore()
        database = {"id": 1, "db_name": {"O": "d", "L": "d"}}
        key = hash_field_key("DBs", b"DB:1")
        self._schema = SchemaTracker([(key, json.dumps(database).encode())], 1)
        self._writer = BinlogWriter(self._store, self._schema)  # type: ignore[arg-type]
        store = SimpleNamespace(listen=lambda _: None)
        versions = SimpleNamespace(new_collations=lambda: True)
        self._values = ChangeWriter(store, versions, ())  # type: ignore[arg-type]
        self._borders: list[bytes] = []
        self._matchers: list[Matcher] = []

    def define(self, *tables: Table) -> None:
        """Change the definitions to these."""
        for table in tables:
            value = json.dumps(table_info(table)).encode()
            change = meta_change(table_key(table.schema_id, table.id), value)
            assert change is not None
            self._schema.apply([change])

    def take(
        self, transactions: Sequence[tuple[int, Sequence[tuple[Table, int, bytes]]]]
    ) -> dict[int, list[tuple[int, int, bytes]]]:
        """Return what lands by commit_ts: table id, kind, row. Commits are ascending."""
        open_ones: deque[_Open] = deque()
        stored = []
        for commit_ts, changes in transactions:
            ts = _BASE + 2 * commit_ts
            stored.append(_Open(ts - 1, ts, self._stored(ts - 1, changes)))
        if not self._matchers:
            self._subscribe({key for each in stored for key in each.changes})
        for each in stored:
            while open_ones and (
                self._rng.random() < 0.5
                or any(each.changes.keys() & other.changes for other in open_ones)
            ):
                self._commit(open_ones.popleft())
            self._send(
                _Row(
                    type=_Event.PREWRITE,
                    start_ts=each.start_ts,
                    key=key,
                    value=change.value or b"",
                    old_value=change.old_value or b"",
                    op_type=_Row.DELETE if change.value is None else _Row.PUT,
                )
                for key, change in each.changes.items()
            )
            open_ones.append(each)
        while open_ones:
            self._commit(open_ones.popleft())
        self._advance(_BASE + 2 * transactions[-1][0])
        return self._landed()

    def _subscribe(self, keys: set[bytes]) -> None:
        self._borders = sorted(self._rng.sample(sorted(keys), min(2, len(keys))))
        for start, end in zip([b"", *self._borders], [*self._borders, b"\xff"], strict=True):
            matcher = Matcher(start, end, _BASE, self._totals)
            matcher.take_in(_Event.Entries(entries=[_Row(type=_Event.INITIALIZED)]))
            self._matchers.append(matcher)

    def _send(self, rows: Iterable[Any]) -> None:
        entries = list(rows)
        self._rng.shuffle(entries)
        for row in entries:
            matcher = self._matchers[bisect_right(self._borders, row.key)]
            matcher.take_in(_Event.Entries(entries=[row]))
            self._sorter.relieve()
            self._totals.relieve()

    def _commit(self, each: _Open) -> None:
        self._send(
            _Row(type=_Event.COMMIT, start_ts=each.start_ts, commit_ts=each.commit_ts, key=key)
            for key in each.changes
        )
        if self._rng.random() < 0.3:
            self._advance(each.commit_ts)

    def _advance(self, ts: int) -> None:
        for matcher in self._matchers:
            matcher.resolved_ts = ts
        self._writer.advance(self._sorter.take(ts), ts)

    def _landed(self) -> dict[int, list[tuple[int, int, bytes]]]:
        found: dict[int, list[tuple[int, int, bytes]]] = {}
        records = [each for each in self._store.records if each.tp == PREWRITE]
        self._store.records.clear()
        batch = batch_of([(each.commit_ts, each.start_ts, each.payload) for each in records])
        for row in pa.Table.from_batches(
            RowExtractor("test").extract(batch), PART_SCHEMA
        ).to_pylist():
            rows = found.setdefault((row["commit_ts"] - _BASE) // 2, [])
            rows.append((row["table_id"], row["kind"], row["row"]))
        return found

    def _stored(
        self, start_ts: int, changes: Sequence[tuple[Table, int, bytes]]
    ) -> dict[bytes, Change]:
        """Return the net change of each key of a transaction."""
        by_table: dict[int, list[tuple[bytes, Datums | None, Datums | None]]] = {}
        tables = {table.id: table for table, _, _ in changes}
        for table, kind, row in changes:
            name, number = _KINDS[kind]
            mutation = pb.binlog.TableMutation(table_id=table.id, sequence=[number])
            getattr(mutation, name).append(row)
            for handle, old, new in self._values._row_changes(table, mutation):
                known = new if old is None else old
                assert known is not None
                if any(column.collate == "utf8mb4_general_ci" for column in _key_columns(table)):
                    handle = _folded_handle(table, known)
                place = _partition(table, known)
                by_table.setdefault(table.id, []).append((record_key(place, handle), old, new))
        found: dict[bytes, Change] = {}
        for table_id, rows in by_table.items():
            found |= self._values._encoded(tables[table_id], start_ts, rows)
        return found


def _key_columns(table: Table) -> list[Column]:
    if table.handle_kind != "common":
        return []
    return [column for column, _ in handle_columns(table)]


def _folded_handle(table: Table, row: Datums) -> bytes:
    """Return a handle that is equal for texts that are equal in general_ci; text is in the value.

    `encode_insert` leaves the handle of such a row as the text itself, TiDB has its weights.
    """
    found = b""
    for column in _key_columns(table):
        value = decode_datum(row[column.id])[0].value
        assert isinstance(value, bytes) and column.kind == "text"
        text = unicodedata.normalize("NFD", value.decode().rstrip(" ").upper())
        letters = "".join(each for each in text if not unicodedata.combining(each))
        found += bytes((BYTES,)) + encode_bytes(letters.encode())
    return found


def _partition(table: Table, row: Datums) -> int:
    """Return the physical id: that of a RANGE over the first column, or the table's."""
    if table.partition is None:
        return table.id
    value = decode_datum(row.get(table.columns[0].id, b"\0"))[0].value
    return next(
        int(each["id"])
        for each in table.partition["definitions"]
        if value is None or int(value) < int(each["less_than"][0])  # type: ignore[call-overload]
    )


def table_info(table: Table) -> dict[str, Any]:
    """Return a definition as TiDB's TableInfo."""
    return {
        "id": table.id,
        "name": {"O": table.name, "L": table.name.lower()},
        "charset": table.charset,
        "collate": table.collate,
        "cols": list(map(_column_info, table.columns)),
        "index_info": list(map(_index_info, table.indexes)),
        "state": table.state,
        "pk_is_handle": table.pk_is_handle,
        "is_common_handle": table.is_common_handle,
        "common_handle_version": table.common_handle_version,
        "partition": table.partition,
    }


def _column_info(column: Column) -> dict[str, Any]:
    return {
        "id": column.id,
        "name": {"O": column.name, "L": column.name.lower()},
        "offset": column.offset,
        "origin_default": column.origin_default,
        "generated_expr_string": column.generated,
        "generated_stored": column.generated_stored,
        "state": column.state,
        "version": column.version,
        "type": {
            "Tp": column.tp,
            "Flag": column.flag,
            "Flen": column.flen,
            "Decimal": column.decimal,
            "Charset": column.charset,
            "Collate": column.collate,
            "Elems": list(column.elems),
        },
    }


def _index_info(index: Index) -> dict[str, Any]:
    return {
        "id": index.id,
        "idx_name": {"O": index.name, "L": index.name.lower()},
        "idx_cols": [
            {"name": {"O": name}, "offset": offset, "length": length}
            for name, offset, length in index.columns
        ],
        "is_unique": index.unique,
        "is_primary": index.primary,
        "state": index.state,
    }
