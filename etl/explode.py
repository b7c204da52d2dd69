"""From transactions to row changes: what `etl.land` does to every window before it is written.

In: rows (commit_ts, start_ts, payload), payload = the Prewrite binlog as TiDB sent it. Out: row changes in the relay log's
PART_SCHEMA, ascending by (commit_ts, position), and the DDL records apart.

A Prewrite's `prewrite_value` holds one TableMutation a table. Within one, `sequence` gives the order of statements over
three lists (inserted_rows, updated_rows, deleted_rows), each consumed by a cursor of its own. Between tables TiDB keeps no
order, so `position` simply counts on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from relay import PART_SCHEMA
from upstream import pb

MAX_USER_TABLE_ID = 0xFFFFFFFFFFFF - 1000
"""Tables with greater ids are TiDB's own (its DDL queue); their changes are nobody's data."""

WINDOW_SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
"""What pumps hand out: one row a committed transaction."""

_INSERT, _UPDATE, _DELETE_ROW = 0, 1, 4
_KIND = {_INSERT: 0, _UPDATE: 1, _DELETE_ROW: 2}
_KIND_BYTES = {name: bytes([kind]) for name, kind in _KIND.items()}
_FAKE_DDL = b"select setval"
_FLUSH_BYTES = 8 * 2**20


class BinlogDecodeError(ValueError):
    """A payload that is not a Prewrite binlog as TiDB writes it; names pump, commit_ts, start_ts and what is wrong."""


@dataclass(frozen=True, slots=True)
class DdlRecord:
    """A DDL binlog: the statement as TiDB rendered it and the job that did it."""

    commit_ts: int
    start_ts: int
    job_id: int
    schema_state: int
    query: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class TableRows:
    """How many changes of a table are inside, and the first and last commit_ts among them."""

    rows: int
    first_commit_ts: int
    last_commit_ts: int


@dataclass(slots=True)
class Totals:
    """What has been exploded so far."""

    transactions: int = 0
    changes: int = 0
    ddls: list[DdlRecord] = field(default_factory=list)
    tables: dict[int, TableRows] = field(default_factory=dict)
    internal_changes: int = 0
    """Skipped: of TiDB's own DDL tables."""
    fake_ddls: int = 0
    """Skipped: `select setval`, which TiDB sends for sequences."""


class Exploder:
    """Explodes the transactions of one pump, in ascending commit_ts; `pump` is only used in errors."""

    def __init__(self, pump: str = "") -> None:
        self.totals = Totals()
        self._pump = pump
        self._last_commit_ts = -1
        self._clear()

    def explode(self, batch: pa.RecordBatch, emit: Callable[[pa.RecordBatch], None]) -> None:
        """Explode a batch in WINDOW_SCHEMA; `emit` gets the changes in batches of PART_SCHEMA of about 8 MiB.

        What is left over is kept until `finish`. Raises BinlogDecodeError.
        """
        parse = pb.binlog.Binlog.FromString
        parse_value = pb.binlog.PrewriteValue.FromString
        commits = batch["commit_ts"].to_pylist()
        starts = batch["start_ts"].to_pylist()
        totals = self.totals
        for commit_ts, start_ts, payload in zip(commits, starts, batch["payload"]):
            if commit_ts <= self._last_commit_ts:
                raise self._error(commit_ts, start_ts, f"it comes after commit_ts {self._last_commit_ts}: the pump's order is broken")
            self._last_commit_ts = commit_ts
            buffer = payload.as_buffer()
            try:
                binlog = parse(memoryview(buffer))
                value = parse_value(binlog.prewrite_value)
            except (DecodeError, TypeError) as error:
                raise self._error(commit_ts, start_ts, f"the payload of {buffer.size} bytes is no Prewrite binlog ({error})") from error
            if binlog.tp or binlog.start_ts != start_ts:
                raise self._error(
                    commit_ts, start_ts, f"a Prewrite was expected, this is a record of type {binlog.tp} with start_ts {binlog.start_ts}"
                )
            totals.transactions += 1
            if binlog.HasField("ddl_query") or not binlog.HasField("prewrite_value"):
                self._ddl(commit_ts, start_ts, binlog)
            position = 0
            for mutation in value.mutations:
                position = self._mutation(commit_ts, start_ts, value.schema_version, mutation, position)
            if self._bytes >= _FLUSH_BYTES:
                self.finish(emit)

    def finish(self, emit: Callable[[pa.RecordBatch], None]) -> None:
        """Emit what is left."""
        if self._rows:
            emit(self._flush())

    def _clear(self) -> None:
        self._rows: list[bytes] = []
        self._kinds = bytearray()
        self._counts: list[int] = []
        self._heads: list[tuple[int, int, int, int, int]] = []
        self._bytes = 0

    def _ddl(self, commit_ts: int, start_ts: int, binlog: Any) -> None:
        if not (binlog.ddl_job_id and binlog.HasField("ddl_query") and binlog.HasField("ddl_schema_state")):
            raise self._error(commit_ts, start_ts, "the payload holds neither changes nor a whole DDL record")
        query = binlog.ddl_query
        if query[:32].lstrip().lower().startswith(_FAKE_DDL):
            self.totals.fake_ddls += 1
            return
        text = query.decode("utf-8", errors="replace")
        self.totals.ddls.append(DdlRecord(commit_ts, start_ts, binlog.ddl_job_id, binlog.ddl_schema_state, text))

    def _mutation(self, commit_ts: int, start_ts: int, version: int, mutation: Any, position: int) -> int:
        table_id = mutation.table_id
        sequence = mutation.sequence
        count = len(sequence)
        inserted = mutation.inserted_rows
        updated = mutation.updated_rows
        deleted = mutation.deleted_rows
        inserts, updates, deletes = len(inserted), len(updated), len(deleted)
        if inserts + updates + deletes != count or mutation.deleted_ids or mutation.deleted_pks:
            raise self._mismatch(commit_ts, start_ts, mutation)
        if table_id > MAX_USER_TABLE_ID:
            self.totals.internal_changes += count
            return position
        if not count:
            return position
        rows: list[bytes]
        if count == inserts:
            rows, only = list(inserted), _INSERT
        elif count == updates:
            rows, only = list(updated), _UPDATE
        elif count == deletes:
            rows, only = list(deleted), _DELETE_ROW
        else:
            rows, only = [], -1
        kinds = list(sequence)
        if only >= 0:
            if kinds.count(only) != count:
                raise self._mismatch(commit_ts, start_ts, mutation)
            self._kinds += _KIND_BYTES[only] * count
        else:
            if kinds.count(_INSERT) != inserts or kinds.count(_UPDATE) != updates or kinds.count(_DELETE_ROW) != deletes:
                raise self._mismatch(commit_ts, start_ts, mutation)
            following = {_INSERT: iter(inserted).__next__, _UPDATE: iter(updated).__next__, _DELETE_ROW: iter(deleted).__next__}
            rows = [following[kind]() for kind in kinds]
            self._kinds += bytes([_KIND[kind] for kind in kinds])
        self._rows += rows
        self._bytes += sum(map(len, rows))
        self._counts.append(count)
        self._heads.append((commit_ts, start_ts, position, table_id, version))
        return position + count

    def _flush(self) -> pa.RecordBatch:
        counts = np.array(self._counts, dtype=np.int64)
        heads = np.array(self._heads, dtype=np.int64)
        commit, start, first, table, version = np.repeat(heads, counts, axis=0).T
        within = np.arange(len(self._rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        try:
            rows = pa.array(self._rows, pa.large_binary())
        except pa.ArrowInvalid as error:
            raise BinlogDecodeError(f"pump {self._pump}: rows near commit_ts {self._last_commit_ts}: {error}") from error
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(np.ascontiguousarray(commit)),
                pa.array(np.ascontiguousarray(start)),
                pa.array((first + within).astype(np.int32)),
                pa.array(np.ascontiguousarray(table)),
                pa.array(np.ascontiguousarray(version)),
                pa.array(np.frombuffer(self._kinds, dtype=np.int8)),
                rows,
            ],
            schema=PART_SCHEMA,
        )
        self.totals.changes += len(self._rows)
        self._count_tables(heads, counts)
        self._clear()
        return batch

    def _count_tables(self, heads: np.ndarray, counts: np.ndarray) -> None:
        ids, inverse = np.unique(heads[:, 3], return_inverse=True)
        rows = np.bincount(inverse, weights=counts)
        for i, table_id in enumerate(ids.tolist()):
            commits = heads[inverse == i, 0]
            first, last = int(commits[0]), int(commits[-1])
            known = self.totals.tables.get(table_id)
            if known is None:
                self.totals.tables[table_id] = TableRows(int(rows[i]), first, last)
            else:
                known.rows += int(rows[i])
                known.last_commit_ts = last

    def _mismatch(self, commit_ts: int, start_ts: int, mutation: Any) -> BinlogDecodeError:
        has = f"{len(mutation.inserted_rows)} inserted, {len(mutation.updated_rows)} updated, {len(mutation.deleted_rows)} deleted rows"
        kinds = list(mutation.sequence)
        wrong = sorted({kind for kind in kinds if kind not in _KIND})
        if wrong or mutation.deleted_ids or mutation.deleted_pks:
            what = f"obsolete mutation types {wrong or [2, 3]}"
        else:
            said = ", ".join(f"{kinds.count(kind)} {name}" for kind, name in ((0, "inserts"), (1, "updates"), (4, "deletes")))
            what = f"its sequence has {len(kinds)} known entries ({said})"
        return self._error(commit_ts, start_ts, f"table id {mutation.table_id}: {has}, but {what}")

    def _error(self, commit_ts: int, start_ts: int, what: str) -> BinlogDecodeError:
        pump = f"pump {self._pump}, " if self._pump else ""
        return BinlogDecodeError(f"{pump}transaction with commit_ts {commit_ts}, start_ts {start_ts}: {what}")
