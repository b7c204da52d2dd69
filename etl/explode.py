"""From transactions to row changes: what `etl.land` does to every window before it is written.

In: rows (commit_ts, start_ts, payload), payload = the Prewrite binlog as TiDB sent it. Out: row changes in the relay log's
PART_SCHEMA, ascending by (commit_ts, position), and the DDL records apart.

A Prewrite's `prewrite_value` holds one TableMutation a table. Within one, `sequence` gives the order of statements over
three lists (inserted_rows, updated_rows, deleted_rows), each consumed by a cursor of its own. Between tables TiDB keeps no
order, so `position` simply counts on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
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

# MutationType (Insert 0, Update 1, the obsolete DeleteID 2 and DeletePK 3, DeleteRow 4) to a part's kind. What is obsolete
# counts as a kind that no mutation has rows of.
_KIND = np.array([0, 1, 3, 3, 2], dtype=np.int64)
_FAKE_DDL = b"select setval"
_FLUSH_BYTES = 8 * 2**20


class BinlogDecodeError(ValueError):
    """A payload that is not a Prewrite binlog as TiDB writes it; names pump, commit_ts, start_ts and what is wrong."""


def _one_pass_binlog() -> Any:
    """The Binlog message with `prewrite_value` declared as the message it holds, so that one parse does for both.
    On the wire, bytes and an embedded message are the same."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.binlog.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "etl/explode.proto", "etl.explode"
    for message in file.message_type:
        for entry in message.field:
            if entry.type_name:
                entry.type_name = entry.type_name.replace(".binlog.", ".etl.explode.")
            if entry.name == "prewrite_value":
                entry.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                entry.type_name = ".etl.explode.PrewriteValue"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("etl.explode.Binlog"))


_Binlog = _one_pass_binlog()


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

    def explode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Explode a batch in WINDOW_SCHEMA; yields the changes in batches of PART_SCHEMA of about 8 MiB.

        What is left over is kept until `finish`. Raises BinlogDecodeError.
        """
        parse = _Binlog.FromString
        heads = self._heads
        rows = self._rows
        kinds = self._kinds
        payloads = _views(batch["payload"])
        for commit_ts, start_ts, payload in zip(batch["commit_ts"].to_pylist(), batch["start_ts"].to_pylist(), payloads):
            if commit_ts <= self._last_commit_ts:
                raise self._error(commit_ts, start_ts, f"it comes after commit_ts {self._last_commit_ts}: the pump's order is broken")
            self._last_commit_ts = commit_ts
            try:
                binlog = parse(payload)
            except DecodeError as error:
                raise self._error(commit_ts, start_ts, f"the payload of {len(payload)} bytes is no Prewrite binlog ({error})") from error
            if binlog.tp or binlog.start_ts != start_ts:
                raise self._error(
                    commit_ts, start_ts, f"a Prewrite was expected, this is a record of type {binlog.tp} with start_ts {binlog.start_ts}"
                )
            self.totals.transactions += 1
            if binlog.HasField("ddl_query") or not binlog.HasField("prewrite_value"):
                self._ddl(commit_ts, start_ts, binlog)
            value = binlog.prewrite_value
            version = value.schema_version
            position = 0
            for mutation in value.mutations:
                count = len(mutation.sequence)
                inserted, updated, deleted = mutation.inserted_rows, mutation.updated_rows, mutation.deleted_rows
                inserts, updates, deletes = len(inserted), len(updated), len(deleted)
                table_id = mutation.table_id
                if inserts + updates + deletes != count or mutation.deleted_ids or mutation.deleted_pks:
                    raise self._mismatch(commit_ts, start_ts, mutation)
                if table_id > MAX_USER_TABLE_ID:
                    self.totals.internal_changes += count
                    continue
                if not count:
                    continue
                heads.append((commit_ts, start_ts, position, table_id, version, inserts, updates, deletes))
                position += count
                kinds.extend(mutation.sequence)
                rows += inserted
                rows += updated
                rows += deleted
            self._bytes += len(payload)
            if self._bytes >= _FLUSH_BYTES:
                yield from self.finish()
                heads, rows, kinds = self._heads, self._rows, self._kinds

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is left."""
        if self._rows:
            yield self._flush()

    def _clear(self) -> None:
        # Rows lie as the mutations have them: per mutation inserted, updated, deleted. `_kinds` has the sequences.
        self._rows: list[bytes] = []
        self._kinds = bytearray()
        self._heads: list[tuple[int, int, int, int, int, int, int, int]] = []
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

    def _flush(self) -> pa.RecordBatch:
        heads = np.array(self._heads, dtype=np.int64)
        counts = heads[:, 5:].sum(axis=1)
        owner = np.repeat(np.arange(len(heads)), counts)
        kind = _KIND[np.frombuffer(self._kinds, dtype=np.uint8)]
        # The n-th insert of a sequence is the n-th inserted row: sorting a mutation's sequence by kind, and leaving equal
        # kinds in order, gives the order in which the rows lie.
        slots = owner * 4 + kind
        said = np.bincount(slots, minlength=4 * len(heads)).reshape(-1, 4)[:, :3]
        if not np.array_equal(said, heads[:, 5:]):
            raise self._wrong_kinds(heads, said)
        rows = pa.array(self._rows, pa.large_binary())
        if (np.diff(slots) < 0).any():
            place = np.empty(len(slots), dtype=np.int64)
            place[np.argsort(slots, kind="stable")] = np.arange(len(slots))
            rows = rows.take(pa.array(place))
        commit, start, first, table, version = (np.repeat(heads[:, column], counts) for column in range(5))
        within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = [commit, start, (first + within).astype(np.int32), table, version, kind.astype(np.int8)]
        batch = pa.RecordBatch.from_arrays([*map(pa.array, columns), rows], schema=PART_SCHEMA)
        self.totals.changes += len(owner)
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
        """The error for a mutation whose sequence is shorter or longer than its lists, or that has obsolete ones."""
        has = f"{len(mutation.inserted_rows)} inserted, {len(mutation.updated_rows)} updated, {len(mutation.deleted_rows)} deleted rows"
        if mutation.deleted_ids or mutation.deleted_pks:
            what = "deletions by key, which TiDB gave up before 2.0"
        else:
            what = f"a sequence of {len(mutation.sequence)} known entries"
        return self._error(commit_ts, start_ts, f"table id {mutation.table_id}: {has}, and {what}")

    def _wrong_kinds(self, heads: np.ndarray, said: np.ndarray) -> BinlogDecodeError:
        """The error for a sequence of the right length that names other kinds than there are rows of."""
        at = int(np.argmax((said != heads[:, 5:]).any(axis=1)))
        commit_ts, start_ts, _, table_id, _, *has = heads[at].tolist()
        names = "inserted, {} updated, {} deleted"
        return self._error(
            commit_ts, start_ts,
            f"table id {table_id}: {has[0]} {names.format(*has[1:])} rows, but the sequence says "
            f"{said[at][0]} {names.format(*said[at][1:].tolist())}",
        )  # fmt: skip

    def _error(self, commit_ts: int, start_ts: int, what: str) -> BinlogDecodeError:
        pump = f"pump {self._pump}, " if self._pump else ""
        return BinlogDecodeError(f"{pump}transaction with commit_ts {commit_ts}, start_ts {start_ts}: {what}")


def _views(payloads: pa.Array) -> Iterator[memoryview]:
    """The values of a (large) binary array, without copying. Nulls are empty."""
    _, offsets, data = payloads.buffers()
    width = np.int64 if pa.types.is_large_binary(payloads.type) else np.int32
    first = payloads.offset
    edges = np.frombuffer(offsets, dtype=width)[first : first + len(payloads) + 1].tolist()
    view = memoryview(data if data is not None else b"")
    return (view[begin:end] for begin, end in itertools.pairwise(edges))
