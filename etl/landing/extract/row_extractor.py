"""Extract row changes from transactions, as landing does to every window before it is written.

In: rows (commit_ts, start_ts, payload), payload = the Prewrite binlog as TiDB sent it. Out: row
changes in the relay log's PART_SCHEMA, ascending by (commit_ts, position), and the DDL records
apart.

A Prewrite's `prewrite_value` holds one TableMutation a table. Within one, `sequence` gives the
order of statements over three lists (inserted_rows, updated_rows, deleted_rows), each consumed by a
cursor of its own. Between tables TiDB keeps no order, so `position` simply counts on.

No message is parsed into objects. A batch of nothing but row changes is
`sluice.etl.landing.extract.kernel`'s; all others, and all of them where that isn't compiled, are
scanned together, level by level, for where things lie, and the rows are gathered from the payloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.landing.extract import kernel
from sluice.etl.landing.extract._wire_scan import (
    RUN_WIRE_TYPE,
    Bytes,
    Ints,
    WireError,
    WireFields,
    scan,
)
from sluice.etl.landing.extract.table_rows import TableTally
from sluice.relay import PART_SCHEMA
from sluice.tidb.schema import MAX_USER_TABLE_ID

# Fields of the messages in tidb/proto/binlog.proto, as number << 3 | wire type.
_TP, _START_TS, _PREWRITE_VALUE, _DDL_QUERY, _DDL_JOB_ID, _DDL_STATE = (
    0x08,
    0x10,
    0x2A,
    0x32,
    0x38,
    0x40,
)
_SCHEMA_VERSION, _MUTATION = 0x08, 0x12
_TABLE_ID, _INSERTED, _UPDATED, _DELETED, _SEQUENCE, _PACKED_SEQUENCE = (
    0x08,
    0x12,
    0x1A,
    0x32,
    0x38,
    0x3A,
)
_OBSOLETE = (0x20, 0x22, 0x2A)  # deleted_ids, the same packed, deleted_pks

# MutationType (Insert 0, Update 1, the obsolete DeleteID 2 and DeletePK 3, DeleteRow 4) to a part's
# kind. What is obsolete counts as a kind that no mutation has rows of.
_KIND = np.array([0, 1, 3, 3, 2], dtype=np.uint8)
_UNKNOWN = 5
_OBSOLETE_KIND = np.uint8(2)

_FAKE_DDL = b"select setval"
_MAX_BATCH_BYTES = 8 * 2**20


class BinlogDecodeError(SluiceError, ValueError):
    """A payload that is not a Prewrite binlog as TiDB writes it.

    Names pump, commit_ts, start_ts and what is wrong.
    """

    hint = "leave the transaction out: `sluice txn skip`"


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
class ExtractTotals:
    """Counts of what has been exploded."""

    transactions: int = 0
    changes: int = 0
    ddls: list[DdlRecord] = field(default_factory=list)
    by_table: TableTally = field(default_factory=TableTally)
    internal_changes: int = 0
    """Skipped changes of TiDB's own DDL tables."""
    fake_ddls: int = 0
    """Skipped `select setval` statements, which TiDB sends for sequences."""


class RowExtractor:
    """Explodes the transactions of one pump, in ascending commit_ts.

    `pump` is only used in errors.
    """

    def __init__(self, pump: str = "") -> None:
        self.totals = ExtractTotals()
        self._pump = pump
        self._last = -1, -1

    def extract(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Explode a batch in WINDOW_SCHEMA.

        Yields the changes in batches of PART_SCHEMA of about 8 MiB, however large a transaction is.
        Beside the batch itself that needs about 100 bytes a row change and 40 MiB. Raises
        BinlogDecodeError.
        """
        if not batch.num_rows:
            return
        transactions = _Transactions(batch)
        self._check_order(transactions)
        found = kernel.scan(*transactions.arguments(), MAX_USER_TABLE_ID)
        if found is not None:
            yield from self._emit_found(transactions, found)
            return
        count = len(transactions.commits)
        fields = self._scan(transactions, transactions.begins, transactions.ends, np.arange(count))
        self._check_kind(transactions, fields)
        values = fields.last(_PREWRITE_VALUE, count)
        self._ddls(transactions, fields, values)
        self.totals.transactions += count

        owners = np.flatnonzero(values >= 0)
        fields = self._scan(
            transactions, fields.begin[values[owners]], fields.end[values[owners]], owners
        )
        versions = np.zeros(count, np.int64)
        version = fields.last(_SCHEMA_VERSION, len(owners))
        versions[owners[version >= 0]] = fields.begin[version[version >= 0]]

        wanted = fields.take(fields.tag == _MUTATION)
        owners = owners[wanted.owner]
        fields = self._scan(transactions, wanted.begin, wanted.end, owners, _SEQUENCE)
        mutations = _Mutations.read(transactions.data, fields, owners, versions)
        del fields, wanted
        self._check_mutations(transactions, mutations)
        yield from self._emit(transactions, mutations)

    def _check_order(self, transactions: _Transactions) -> None:
        commits, starts = transactions.commits, transactions.starts
        before, began = (
            np.concatenate(([last], own[:-1])) for last, own in zip(self._last, (commits, starts))
        )
        wrong = (commits < before) | ((commits == before) & (starts <= began))
        for i in np.flatnonzero(wrong)[:1].tolist():
            raise self._error(
                transactions,
                i,
                f"it comes after commit_ts {before[i]}, start_ts {began[i]}: the pump's order is"
                " broken",
                skippable=False,
            )
        self._last = int(commits[-1]), int(starts[-1])

    def _scan(
        self, transactions: _Transactions, begins: Ints, ends: Ints, owners: Ints, run_tag: int = -1
    ) -> WireFields:
        try:
            return scan(transactions.data, begins, ends, run_tag)
        except WireError as error:
            i = int(owners[error.owner])
            size = transactions.ends[i] - transactions.begins[i]
            raise self._error(
                transactions,
                i,
                f"the payload of {size} bytes is no Prewrite binlog (it breaks off or is garbled)",
            ) from error

    def _check_kind(self, transactions: _Transactions, fields: WireFields) -> None:
        count = len(transactions.commits)
        tp, start = (_values(fields, tag, count) for tag in (_TP, _START_TS))
        for i in np.flatnonzero((tp != 0) | (start != transactions.starts))[:1].tolist():
            raise self._error(
                transactions,
                i,
                f"a Prewrite was expected, this is a record of type {tp[i]} with start_ts"
                f" {start[i]}",
            )

    def _ddls(self, transactions: _Transactions, fields: WireFields, values: Ints) -> None:
        count = len(values)
        queries, states = fields.last(_DDL_QUERY, count), fields.last(_DDL_STATE, count)
        job_ids = _values(fields, _DDL_JOB_ID, count)
        for i in np.flatnonzero((queries >= 0) | (values < 0)).tolist():
            if (
                queries[i] < 0
                or not job_ids[i]
                or fields.begin[queries[i]] == fields.end[queries[i]]
            ):
                raise self._error(
                    transactions, i, "the payload holds neither changes nor a whole DDL record"
                )
            query = transactions.data[fields.begin[queries[i]] : fields.end[queries[i]]].tobytes()
            if query[:32].lstrip().lower().startswith(_FAKE_DDL):
                self.totals.fake_ddls += 1
                continue
            text = query.decode("utf-8", errors="replace")
            commit_ts, start_ts = int(transactions.commits[i]), int(transactions.starts[i])
            # TiDB up to 2.1.18 and 3.0.6 doesn't send it
            state = int(fields.begin[states[i]]) if states[i] >= 0 else 0
            self.totals.ddls.append(DdlRecord(commit_ts, start_ts, int(job_ids[i]), state, text))

    def _check_mutations(self, transactions: _Transactions, mutations: _Mutations) -> None:
        wrong = (mutations.has.sum(axis=1) != mutations.named.sum(axis=1)) | mutations.obsolete
        for at in np.flatnonzero(wrong)[:1].tolist():
            inserted, updated, deleted = mutations.has[at].tolist()
            has = f"{inserted} inserted, {updated} updated, {deleted} deleted rows"
            if mutations.obsolete[at]:
                what = "deletions by key, which TiDB gave up before 2.0"
            else:
                what = f"a sequence of {mutations.named[at].sum()} known entries"
            raise self._error(
                transactions,
                int(mutations.owners[at]),
                f"table id {mutations.table_ids[at]}: {has}, and {what}",
            )
        for at in np.flatnonzero((mutations.has != mutations.named[:, :3]).any(axis=1))[
            :1
        ].tolist():
            names = "{} inserted, {} updated, {} deleted"
            raise self._error(
                transactions,
                int(mutations.owners[at]),
                f"table id {mutations.table_ids[at]}: {names.format(*mutations.has[at].tolist())}"
                f" rows, but the sequence has {names.format(*mutations.named[at, :3].tolist())}",
            )

    def _emit_found(
        self, transactions: _Transactions, found: tuple[bytes, bytes, bytes, int, int]
    ) -> Iterator[pa.RecordBatch]:
        """Return the changes that the kernel has found."""
        mutations, changes, tables, internal, size = found
        self.totals.transactions += len(transactions.commits)
        self.totals.internal_changes += internal
        lengths = np.frombuffer(changes, np.int64)[1::2] >> 2
        if not len(lengths):
            return
        self.totals.changes += len(lengths)
        self.totals.by_table.add(np.frombuffer(tables, np.int64).reshape(-1, 6))
        data, _, commits, starts = transactions.arguments()
        for begin, end in (
            _groups(np.cumsum(lengths)) if size > _MAX_BATCH_BYTES else ((0, len(lengths)),)
        ):
            *columns, edges, rows = map(
                pa.py_buffer, kernel.columns(data, commits, starts, mutations, changes, begin, end)
            )
            arrays = [
                pa.Array.from_buffers(column.type, end - begin, [None, buffer])
                for column, buffer in zip(PART_SCHEMA, columns)
            ]
            taken = pa.Array.from_buffers(pa.large_binary(), end - begin, [None, edges, rows])
            yield pa.RecordBatch.from_arrays([*arrays, taken], schema=PART_SCHEMA)

    def _emit(self, transactions: _Transactions, mutations: _Mutations) -> Iterator[pa.RecordBatch]:
        counts = mutations.has.sum(axis=1)
        internal = mutations.table_ids > MAX_USER_TABLE_ID
        self.totals.internal_changes += int(counts[internal].sum())
        kept = np.flatnonzero(~internal & (counts > 0))
        if not len(kept):
            return
        # a mutation's first change, among all of the batch
        firsts = (np.cumsum(counts) - counts)[kept]
        counts, owners = counts[kept], mutations.owners[kept]
        ends = np.cumsum(counts)
        commits, starts = transactions.commits[owners], transactions.starts[owners]
        tables, versions = mutations.table_ids[kept], mutations.versions[kept]
        self.totals.by_table.add(
            np.column_stack([tables, counts, commits, commits, versions, versions])
        )
        self.totals.changes += int(ends[-1])
        # Positions count on through the mutations of a transaction.
        before = ends - counts
        opening = np.concatenate(([True], owners[1:] != owners[:-1]))
        positions = before - before[opening][np.cumsum(opening) - 1]
        places = mutations.places()
        rows = mutations.rows(transactions.payloads)
        sizes = (mutations.edges[1::2] - mutations.edges[::2])[places]
        if internal.any():
            sizes = sizes[np.repeat(~internal, mutations.has.sum(axis=1))]
        for begin, end in _groups(np.cumsum(sizes)):
            first, last = np.searchsorted(ends, [begin, end - 1], side="right").tolist()
            inside = counts[first : last + 1].copy()
            inside[-1] -= ends[last] - end
            inside[0] -= begin - before[first]
            owner = np.repeat(np.arange(first, last + 1), inside)
            nth = np.arange(begin, end) - before[owner]
            changes = firsts[owner] + nth
            columns = [
                commits[owner],
                starts[owner],
                (positions[owner] + nth).astype(np.int32),
                tables[owner],
                versions[owner],
                mutations.kinds[changes].astype(np.int8),
            ]
            # Between two rows lies what belongs to neither: every other element is a row.
            taken = rows.take(pa.array(places[changes] * 2))
            yield pa.RecordBatch.from_arrays([*map(pa.array, columns), taken], schema=PART_SCHEMA)

    def _error(
        self, transactions: _Transactions, i: int, what: str, *, skippable: bool = True
    ) -> BinlogDecodeError:
        pump = f"pump {self._pump}, " if self._pump else ""
        commit_ts, start_ts = transactions.commits[i], transactions.starts[i]
        text = f"{pump}transaction with commit_ts {commit_ts}, start_ts {start_ts}: {what}"
        if not skippable:
            return BinlogDecodeError(text)
        return BinlogDecodeError(
            f"{text}.", hint=f"`sluice txn skip {commit_ts}` leaves the transaction out"
        )


class _Transactions:
    """A batch in WINDOW_SCHEMA as arrays; payload i lies in `data` from begins[i] to ends[i]."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.commits: Ints = batch["commit_ts"].to_numpy()
        self.starts: Ints = batch["start_ts"].to_numpy()
        column = batch["payload"]
        _, offsets, payloads = column.buffers()
        self.payloads = payloads if payloads is not None else pa.py_buffer(b"")
        self.data: Bytes = np.frombuffer(self.payloads, np.uint8)
        edges = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self._edges = edges
        self.begins, self.ends = edges[:-1], edges[1:]

    def arguments(self) -> tuple[pa.Buffer, Ints, Ints, Ints]:
        """Return the arguments for the kernel."""
        return self.payloads, self._edges, self.commits, self.starts


@dataclass(slots=True)
class _Mutations:
    """The TableMutations of a batch, in their order.

    Rows are numbered as they lie in the payloads; changes as the sequences have them, mutation by
    mutation.
    """

    owners: Ints
    """The transaction each belongs to."""
    versions: Ints
    table_ids: Ints
    obsolete: npt.NDArray[np.bool_]
    """True if the mutation has rows of obsolete kinds."""
    has: Ints
    """Counts of inserted, updated, deleted rows by mutation: three columns."""
    named: Ints
    """Counts by kind in its sequence; a fourth column for the obsolete kinds."""
    edges: Ints
    """Begins and ends of rows: row i from edges[2 i] to edges[2 i + 1]."""
    kinds: Bytes
    """The kind of every change."""
    _order: Ints | None
    """The rows by mutation and list, if they are stored in another order."""

    @classmethod
    def read(cls, data: Bytes, fields: WireFields, owners: Ints, versions: Ints) -> _Mutations:
        count = len(owners)
        tag = fields.tag
        which = np.flatnonzero((tag == _INSERTED) | (tag == _UPDATED) | (tag == _DELETED))
        edges = np.empty(2 * len(which), np.int64)
        edges[::2], edges[1::2] = fields.begin[which], fields.end[which]
        slots = (
            fields.owner[which] * np.int64(3) + (tag[which] != _INSERTED) + (tag[which] == _DELETED)
        )
        order = np.argsort(slots, kind="stable") if _is_descending(slots) else None
        kinds, kind_owners = _sequences(data, fields)
        obsolete = np.zeros(count, np.bool_)
        obsolete[fields.owner[np.isin(tag, _OBSOLETE)]] = True
        named = np.bincount(kind_owners * np.int64(4) + kinds, minlength=4 * count)
        return cls(
            owners, versions[owners], _values(fields, _TABLE_ID, count), obsolete,
            np.bincount(slots, minlength=3 * count).reshape(-1, 3), named.reshape(-1, 4),
            edges, kinds, order,
        )  # fmt: skip

    def places(self) -> Ints:
        """Return the row of each change. Sequences and lists must agree."""
        places = np.arange(len(self.kinds))
        slots = np.repeat(np.arange(len(self.owners)) * 4, self.named.sum(axis=1)) + self.kinds
        # The n-th insert of a sequence is the n-th inserted row: sorting a mutation's sequence by
        # kind, and leaving equal kinds in order, gives the order of the lists.
        if _is_descending(slots):
            places[np.argsort(slots, kind="stable")] = np.arange(len(slots))
        return places if self._order is None else self._order[places]

    def rows(self, payloads: pa.Buffer) -> pa.Array:
        """Return an array that shares the payloads' memory, whose element 2 i is row i."""
        buffers = [None, pa.py_buffer(self.edges), payloads]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.edges) - 1, buffers)


def _sequences(data: Bytes, fields: WireFields) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return the kinds that sequences name, as a part's kinds (3: obsolete), and their mutations.

    Unknown types are left out, as protobuf does.
    """
    tag = fields.tag
    runs = np.isin(tag, (_SEQUENCE | RUN_WIRE_TYPE, _PACKED_SEQUENCE))
    if not runs.any():
        single = fields.take(tag == _SEQUENCE)
        values, owners = single.begin, single.owner
    else:
        pieces, counts = [], []
        some = fields.take(runs | (tag == _SEQUENCE))
        for kind, begin, end in zip(some.tag.tolist(), some.begin.tolist(), some.end.tolist()):
            if kind == _SEQUENCE:
                pieces.append(np.array([begin if 0 <= begin <= _UNKNOWN else _UNKNOWN], np.uint8))
            elif kind == _PACKED_SEQUENCE:
                pieces.append(_packed(data[begin:end]))
            else:
                pieces.append(data[begin + 1 : end : 2])
            counts.append(len(pieces[-1]))
        values, owners = np.concatenate(pieces), np.repeat(some.owner, counts)
    known = (values >= 0) & (values < len(_KIND))
    if not known.all():
        values, owners = values[known], owners[known]
    return _KIND[values], owners


def _packed(data: Bytes) -> Bytes:
    """Return the values of a packed field of enums, _UNKNOWN for those of more than one byte.

    One that breaks off ends in an obsolete kind, which no sequence agrees with.
    """
    last = data < 0x80
    single = last & np.concatenate(([True], last[:-1]))[: len(last)]
    values = np.where(single, data, _UNKNOWN).astype(np.uint8)[last]
    return values if not len(data) or last[-1] else np.append(values, _OBSOLETE_KIND)


def _values(fields: WireFields, tag: int, count: int) -> Ints:
    """Return the value of each message's last VARINT field with this tag; 0 without one."""
    at = fields.last(tag, count)
    return (
        np.where(at >= 0, fields.begin[at], 0) if len(fields.begin) else np.zeros(count, np.int64)
    )


def _is_descending(values: Ints) -> bool:
    return bool((values[1:] < values[:-1]).any())


def _groups(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Cut rows into runs of about _MAX_BATCH_BYTES, at least one row each.

    The sizes are cumulative.
    """
    begin, before = 0, 0
    while begin < len(sizes):
        end = max(begin + 1, int(np.searchsorted(sizes, before + _MAX_BATCH_BYTES, "right")))
        yield begin, end
        begin, before = end, int(sizes[end - 1])
