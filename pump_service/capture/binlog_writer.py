"""Write captured transactions to the pump's store.

Each transaction becomes one record: the Prewrite that TiDB would have sent, with its commit_ts.
Readers see it once the store reaches the frontier, which a fake binlog behind the records brings.
After a crash the capture begins at the last frontier again, and what was written behind it is
written again under the same timestamps.

Transactions may share a commit_ts, and no frontier comes between them. Their rows are read by the
definitions before it, and DDL comes behind them.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Container, Iterable, Iterator
from operator import attrgetter

from sluice.errors import SluiceError
from sluice.pump_service.capture.ddl_jobs import DdlJobs
from sluice.pump_service.capture.row_changes import MAX_VALUE_BYTES, ChangeConverter, encode_ddl
from sluice.pump_service.capture.schema_tracker import MetaChange, SchemaTracker
from sluice.pump_service.capture.transactions import CapturedTransaction, CaptureSink
from sluice.pump_service.store import NoSpaceError, Record, Store
from sluice.pump_service.store.binlog_head import encode_outcome
from sluice.tidb import tso
from sluice.tidb.binlog_kinds import PREWRITE, ROLLBACK
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.pd import PDClient
from sluice.tidb.tikv import TiKVClient

log = logging.getLogger(__name__)

_GROUP_BYTES = 4 << 20
_GROUP_RECORDS = 4096
_SPACE_CHECK_INTERVAL_S = 1.0
_FRONTIER_INTERVAL_BYTES = 64 << 20
"""A long catch-up can be read from after so many bytes."""
MAX_PARTS = 4096
"""Parts of a transaction, 128 GiB."""


class CaptureWriteError(SluiceError):
    """A captured transaction that can't be written as binlogs; names its timestamps."""

    hint = "report it with the pump's log"


class BinlogWriter:
    """Write what the capture hands over. One thread calls `advance`."""

    def __init__(
        self,
        store: Store,
        schema: SchemaTracker,
        max_value_bytes: int = MAX_VALUE_BYTES,
        *,
        is_shared: bool = False,
    ) -> None:
        """Begin at the store's frontier.

        A transaction of more than `max_value_bytes` is stored in parts. With `is_shared` other
        pumps have what other tables of the same transactions got.
        """
        self._schema, self._is_shared = schema, is_shared
        self._changes = ChangeConverter(schema, max_value_bytes)
        self._jobs = DdlJobs()
        self._records = _RecordWriter(store)
        self.resolved_ts = store.max_commit_ts
        self._frontier_at = 0
        self.transactions = 0
        self.ddls = 0

    @property
    def rows(self) -> int:
        """Return how many row changes were written."""
        return self._changes.rows

    def advance(self, transactions: Iterator[CapturedTransaction], resolved_ts: int) -> None:
        """Store all transactions through `resolved_ts`; all is on disk when it returns.

        They come by commit_ts and start_ts, each once. After an error nothing may be handed over
        any more: the capture begins again at the store's max_commit_ts. Raises StoreError,
        UnknownTableError, CodecError, SchemaError, HistoryError, CaptureWriteError.
        """
        for commit_ts, group in itertools.groupby(transactions, attrgetter("commit_ts")):
            self._write_group(commit_ts, group)
            if self._records.written_bytes - self._frontier_at >= _FRONTIER_INTERVAL_BYTES:
                self._write_frontier(commit_ts)
        if resolved_ts > self.resolved_ts:
            self._write_frontier(resolved_ts)
        self._records.flush()

    def _write_frontier(self, ts: int) -> None:
        self._records.write(ROLLBACK, ts, ts, encode_outcome(ROLLBACK, ts, ts))
        self._frontier_at = self._records.written_bytes
        self.resolved_ts = ts

    def _write_group(self, commit_ts: int, group: Iterable[CapturedTransaction]) -> None:
        """Write the transactions of one commit timestamp, then apply their schema changes."""
        ddls: list[tuple[int, bytes]] = []
        schema_changes: list[MetaChange] = []
        starts: set[int] = set()
        for transaction in group:
            self.transactions += 1
            start_ts = transaction.start_ts
            starts.add(start_ts)
            found = self._changes.read(transaction)
            earlier = max((each for each in starts if each < start_ts), default=0)
            after = earlier if self._is_shared else 0
            parts = part_start_ts(start_ts, starts, after) if found.is_split else iter((start_ts,))
            # Readers make one transaction of the parts, which must then come behind those of an
            # earlier start_ts. Where one lies between, the parts stay transactions of their own.
            # Rows in several shares need one order, so there the parts must fit behind it.
            is_marked = found.is_split and (self._is_shared or earlier < start_ts - MAX_PARTS)
            for part, part_ts in zip(found.parts, parts, strict=False):
                payload = part.encode(part_ts, found.first_key)
                if is_marked:
                    payload = _as_part(payload, part_ts, commit_ts, start_ts)
                self._records.write(PREWRITE, part_ts, commit_ts, payload)
            if not found.jobs and not found.schema_changes:
                continue
            jobs = self._jobs.find(found.jobs, found.schema_changes)
            if len(jobs) > 1:
                raise CaptureWriteError(
                    f"transaction {start_ts} at commit_ts {commit_ts} ({tso.text(commit_ts)}) has"
                    f" {len(jobs)} DDL jobs: {', '.join(str(job.job_id) for job in jobs)}"
                )
            ddls += [
                (start_ts, encode_ddl(start_ts, commit_ts, found.first_key, job)) for job in jobs
            ]
            schema_changes += found.schema_changes
        for start_ts, payload in ddls:
            self.ddls += 1
            self._records.write(PREWRITE, start_ts, commit_ts, payload)
        if schema_changes:
            self._schema.apply(schema_changes, commit_ts)


class _RecordWriter:
    """Submit records in groups, one group at a time.

    Each group is submitted after the one before is on disk; the next group is converted meanwhile.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._group: list[Record] = []
        self._size = 0
        self.written_bytes = 0
        self._submitted: _Submitted | None = None

    def write(self, tp: int, start_ts: int, commit_ts: int, payload: bytes) -> None:
        """Add a record. Raises StoreError."""
        self._group.append(Record(tp, start_ts, commit_ts, payload))
        self._size += len(payload)
        self.written_bytes += len(payload)
        if self._size >= _GROUP_BYTES or len(self._group) >= _GROUP_RECORDS:
            self._submit()

    def flush(self) -> None:
        """Return once everything is on disk. Raises StoreError."""
        self._submit()
        self._await()

    def _submit(self) -> None:
        self._await()
        if self._group:
            self._submitted = _Submitted(self._store, self._group)
            self._group, self._size = [], 0

    def _await(self) -> None:
        submitted, self._submitted = self._submitted, None
        if submitted is not None:
            submitted.wait()


class _Submitted:
    """A group of records that the store is writing."""

    def __init__(self, store: Store, records: list[Record]) -> None:
        self._store, self._records = store, records
        self._submit()

    def _submit(self) -> None:
        self._error: BaseException | None = None
        self._answered = threading.Event()
        self._store.submit(self._records, self._done)

    def _done(self, error: BaseException | None) -> None:
        self._error = error
        self._answered.set()

    def wait(self) -> None:
        """Return once the records are on disk; wait for room on a full disk. Raises StoreError."""
        while True:
            self._answered.wait()
            if self._error is None:
                return
            if not isinstance(self._error, NoSpaceError):
                raise self._error
            time.sleep(_SPACE_CHECK_INTERVAL_S)
            self._submit()


def make_sink(
    store: Store, pd: PDClient, tikv: TiKVClient, start_ts: int, *, is_shared: bool = False
) -> CaptureSink:
    """Return the sink of a capture that begins at `start_ts`, whose definitions it reads from TiKV.

    `is_shared`: it is of a share of the tables. Raises TiKVError, SchemaError, HistoryError.
    """
    schema = SchemaTracker.read(tikv, start_ts)
    log.info(
        "schema read: tables=%d schema_version=%d ts=%d",
        len(schema),
        schema.schema_version,
        start_ts,
    )
    return BinlogWriter(store, schema, is_shared=is_shared)


def _as_part(payload: bytes, part_ts: int, commit_ts: int, start_ts: int) -> bytes:
    """Return a Prewrite that names the transaction of which it is a part behind its timestamps."""
    head = 4 + sum(len(encode_uvarint(ts)) for ts in (part_ts, commit_ts))  # with three tags and tp
    return b"".join((payload[:head], b"\x48", encode_uvarint(start_ts), payload[head:]))


def part_start_ts(start_ts: int, taken: Container[int], after: int = 0) -> Iterator[int]:
    """Yield the start_ts under which the parts of a large transaction are stored, ascending.

    They lie behind `after`, differ from those `taken` by other transactions of its commit_ts, and
    are the same after a restart.
    """
    for found in range(max(start_ts - MAX_PARTS, after + 1), start_ts):
        if found not in taken:
            yield found
    raise CaptureWriteError(
        f"transaction {start_ts} has more parts of {MAX_VALUE_BYTES} bytes than start timestamps"
        f" are free for them, {MAX_PARTS} at most"
    )
