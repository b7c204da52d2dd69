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
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.landing.extract import kernel
from sluice.etl.landing.extract._mutations import SEQUENCE, Mutations, Transactions, field_values
from sluice.etl.landing.extract._wire_scan import (
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
    """Explode the transactions of one pump, in ascending commit_ts.

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
        transactions = Transactions(batch)
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
        fields = self._scan(transactions, wanted.begin, wanted.end, owners, SEQUENCE)
        mutations = Mutations.read(transactions.data, fields, owners, versions)
        del fields, wanted
        self._check_mutations(transactions, mutations)
        yield from self._emit(transactions, mutations)

    def _check_order(self, transactions: Transactions) -> None:
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
        self, transactions: Transactions, begins: Ints, ends: Ints, owners: Ints, run_tag: int = -1
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

    def _check_kind(self, transactions: Transactions, fields: WireFields) -> None:
        count = len(transactions.commits)
        tp, start = (field_values(fields, tag, count) for tag in (_TP, _START_TS))
        for i in np.flatnonzero((tp != 0) | (start != transactions.starts))[:1].tolist():
            raise self._error(
                transactions,
                i,
                f"a Prewrite was expected, this is a record of type {tp[i]} with start_ts"
                f" {start[i]}",
            )

    def _ddls(self, transactions: Transactions, fields: WireFields, values: Ints) -> None:
        count = len(values)
        queries, states = fields.last(_DDL_QUERY, count), fields.last(_DDL_STATE, count)
        job_ids = field_values(fields, _DDL_JOB_ID, count)
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

    def _check_mutations(self, transactions: Transactions, mutations: Mutations) -> None:
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
        self, transactions: Transactions, found: tuple[bytes, bytes, bytes, int, int]
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

    def _emit(self, transactions: Transactions, mutations: Mutations) -> Iterator[pa.RecordBatch]:
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
        self, transactions: Transactions, i: int, what: str, *, skippable: bool = True
    ) -> BinlogDecodeError:
        pump = f"pump {self._pump}, " if self._pump else ""
        commit_ts, start_ts = transactions.commits[i], transactions.starts[i]
        text = f"{pump}transaction with commit_ts {commit_ts}, start_ts {start_ts}: {what}"
        if not skippable:
            return BinlogDecodeError(text)
        return BinlogDecodeError(
            f"{text}.", hint=f"`sluice txn skip {commit_ts}` leaves the transaction out"
        )


def _groups(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Cut rows into runs of about _MAX_BATCH_BYTES, at least one row each.

    The sizes are cumulative.
    """
    begin, before = 0, 0
    while begin < len(sizes):
        end = max(begin + 1, int(np.searchsorted(sizes, before + _MAX_BATCH_BYTES, "right")))
        yield begin, end
        begin, before = end, int(sizes[end - 1])
