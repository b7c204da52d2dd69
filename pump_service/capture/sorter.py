"""Gather committed changes into transactions, and hand them out in commit order up to the frontier.

The matcher's thread adds, another one takes. Beyond `memory_bytes` the changes move to sorted runs
on disk, and the prewrites of large open transactions to `PrewriteFiles`. A transaction that comes
out is the merge of all that belongs to it, by key.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path

from sluice.errors import SluiceError
from sluice.pump_service.capture.run_files import (
    DELETE,
    EXPECTED,
    POSSIBLE,
    PUT,
    PrewriteFiles,
    RunFolder,
    RunRecord,
    SortedRun,
    read_records,
    write_records,
)
from sluice.pump_service.capture.transactions import CapturedTransaction, KeyChange

CHANGE_OVERHEAD_BYTES = 250
"""Memory of a change beside its key and values: tuple, three bytes objects, its place in a dict."""
_IN_MEMORY_CHANGES = 20_000
_IN_MEMORY_BYTES = 8 << 20
"""A merged transaction beyond either of these is written to a file before it is handed out."""

_identity = attrgetter("commit_ts", "start_ts")
_key = attrgetter("key")


class LostPrewriteError(SluiceError):
    """Report a commit without its prewrite."""

    transient = True
    hint = "nothing to do: the capture begins again at its last durable timestamp"


class LateChangeError(SluiceError):
    """Report a change that came after the frontier had passed its commit_ts."""

    hint = (
        "readers may lack this change: take a new snapshot (`sluice bootstrap`), and report the"
        " lines of the pump's and TiKV's logs around it"
    )


class _Transaction:
    """Hold the changes of one transaction in memory, by key.

    None: its values are in a spilled prewrite.
    """

    __slots__ = ("changes", "is_kept", "possible", "size", "source")

    def __init__(self, source: int) -> None:
        self.source = source
        self.changes: dict[bytes, KeyChange | None] = {}
        self.possible: set[bytes] = set()
        self.is_kept = False
        """Whether rollbacks leave its spilled prewrites alone."""
        self.size = 0


class CommitSorter:
    """Hold committed changes until the frontier passes them. Thread-safe with one taking thread."""

    def __init__(self, folder: RunFolder, memory_bytes: int) -> None:
        self.folder = folder
        self._memory_bytes = memory_bytes
        self.prewrites = PrewriteFiles(folder)
        """Spilled prewrites of open transactions."""
        self.lock = threading.RLock()
        """Held by the matcher for the events of one message, and while transactions are taken out.
        """
        self._pending: dict[tuple[int, int], _Transaction] = {}
        self._order: list[tuple[int, int]] = []  # a heap of the keys of _pending
        self._runs: list[SortedRun] = []
        self.bytes = 0
        """Memory in use, an estimate."""
        self.taken_ts = 0
        """Timestamp through which transactions have been taken."""
        self.spilled_changes = 0

    def add(self, commit_ts: int, start_ts: int, source: int, change: KeyChange) -> None:
        """Add a whole change. The same change may be added again."""
        found = self._of(commit_ts, start_ts, source)
        if found.changes.get(change.key) is None:
            found.changes[change.key] = change
            self._grow(found, len(change.key) + len(change.value) + len(change.old_value))
        found.source = found.source or source

    def add_all(
        self, commit_ts: int, start_ts: int, source: int, changes: Iterable[KeyChange]
    ) -> None:
        """Add whole changes of one transaction, as `add` does."""
        found = self._of(commit_ts, start_ts, source)
        own, size = found.changes, 0
        for change in changes:
            key, value, old_value, _ = change
            if own.get(key) is None:
                own[key] = change
                size += len(key) + len(value) + len(old_value) + CHANGE_OVERHEAD_BYTES
        found.size += size
        self.bytes += size
        found.source = found.source or source

    def expect(self, commit_ts: int, start_ts: int, key: bytes, *, is_certain: bool) -> None:
        """Add the commit of a key whose values are in a spilled prewrite.

        With `is_certain` it is an error if no prewrite is found when the transaction comes out.
        """
        found = self._of(commit_ts, start_ts, 0)
        if key not in found.changes:
            found.changes[key] = None
            if not found.is_kept:
                self.prewrites.keep(start_ts)
                found.is_kept = True
            if not is_certain:
                found.possible.add(key)
            self._grow(found, len(key))
        elif is_certain:
            found.possible.discard(key)

    def _of(self, commit_ts: int, start_ts: int, source: int) -> _Transaction:
        identity = (commit_ts, start_ts)
        found = self._pending.get(identity)
        if found is None:
            if commit_ts <= self.taken_ts:
                raise LateChangeError(
                    f"a change of transaction {start_ts} with commit ts {commit_ts} came after"
                    f" everything through {self.taken_ts} was handed on"
                )
            found = self._pending[identity] = _Transaction(source)
            heapq.heappush(self._order, identity)
        return found

    def _grow(self, transaction: _Transaction, payload: int) -> None:
        transaction.size += payload + CHANGE_OVERHEAD_BYTES
        self.bytes += payload + CHANGE_OVERHEAD_BYTES

    @property
    def is_full(self) -> bool:
        """Return whether memory exceeds the limit."""
        return self.bytes > self._memory_bytes

    def relieve(self) -> None:
        """Write everything in memory to a run if it exceeds the limit. Raises OSError."""
        if not self.is_full:
            return
        with self.lock:
            identities = sorted(self._pending)
            self._runs.append(SortedRun(self.folder.new(), self._records(identities)))
            self.spilled_changes += sum(len(each.changes) for each in self._pending.values())
            self._pending.clear()
            self._order.clear()
            self.bytes = 0

    def _records(self, identities: Iterable[tuple[int, int]]) -> Iterator[RunRecord]:
        for commit_ts, start_ts in identities:
            yield from _records_of(commit_ts, start_ts, self._pending[commit_ts, start_ts])

    def take(self, through_ts: int) -> Iterator[CapturedTransaction]:
        """Take out all transactions with a commit_ts of at most `through_ts`, in order.

        All their changes must have been added. Each transaction is valid until the next one is
        asked for. Raises OSError, RunFileError, and LostPrewriteError.
        """
        with self.lock:
            taken: list[tuple[tuple[int, int], _Transaction]] = []
            while self._order and self._order[0][0] <= through_ts:
                identity = heapq.heappop(self._order)
                transaction = self._pending.pop(identity)
                self.bytes -= transaction.size
                taken.append((identity, transaction))
            runs = [run for run in self._runs if run.first_ts <= through_ts]
            self.taken_ts = max(self.taken_ts, through_ts)
        if not runs:
            for (commit_ts, start_ts), transaction in taken:
                yield from self._whole(commit_ts, start_ts, transaction)
            return
        yield from self._merged(taken, runs, through_ts)
        with self.lock:
            self._runs = [run for run in self._runs if run.first_ts < 1 << 64]

    def _whole(
        self, commit_ts: int, start_ts: int, transaction: _Transaction
    ) -> Iterator[CapturedTransaction]:
        """Yield a transaction of which nothing is in a run.

        Nothing if it has no changes after all.
        """
        if start_ts in self.prewrites:
            yield from self._group(
                commit_ts, start_ts, _records_of(commit_ts, start_ts, transaction)
            )
            return
        changes = transaction.changes
        if None in changes.values():
            raise LostPrewriteError(
                f"a prewrite of transaction {start_ts}, committed at {commit_ts}, has been dropped"
            )
        ordered = [changes[key] for key in sorted(changes)]
        yield CapturedTransaction(start_ts, commit_ts, transaction.source, ordered)  # type: ignore[arg-type]

    def _merged(
        self,
        taken: list[tuple[tuple[int, int], _Transaction]],
        runs: list[SortedRun],
        through_ts: int,
    ) -> Iterator[CapturedTransaction]:
        in_memory = chain.from_iterable(
            _records_of(*identity, transaction) for identity, transaction in taken
        )
        merged = heapq.merge(in_memory, *(run.through(through_ts) for run in runs))
        for (commit_ts, start_ts), records in groupby(merged, key=_identity):
            yield from self._group(commit_ts, start_ts, records)

    def _group(
        self, commit_ts: int, start_ts: int, records: Iterable[RunRecord]
    ) -> Iterator[CapturedTransaction]:
        with self.lock:
            prewrites = self.prewrites.read(start_ts)
        source, file = 0, None
        kept: list[RunRecord] = []
        size = 0
        for record in _joined(records, prewrites):
            source = source or record.source
            kept.append(record)
            size += len(record.key) + len(record.value) + len(record.old_value)
            if len(kept) >= _IN_MEMORY_CHANGES or size >= _IN_MEMORY_BYTES:
                file = file or self.folder.new()
                write_records(file, kept)
                kept, size = [], 0
        if file is None:
            if kept:
                yield CapturedTransaction(
                    start_ts, commit_ts, source, [_change(record) for record in kept]
                )
        else:
            write_records(file, kept)
            try:
                yield CapturedTransaction(start_ts, commit_ts, source, _StoredChanges(file))
            finally:
                file.unlink(missing_ok=True)
        with self.lock:
            self.prewrites.drop(start_ts)


class _StoredChanges:
    """Iterate over changes in a file, as often as needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[KeyChange]:
        return map(_change, read_records(self._path, 0, self._path.stat().st_size))


def _change(record: RunRecord) -> KeyChange:
    return KeyChange(record.key, record.value, record.old_value, record.kind == DELETE)


def _records_of(commit_ts: int, start_ts: int, transaction: _Transaction) -> Iterator[RunRecord]:
    source, changes, possible = transaction.source, transaction.changes, transaction.possible
    for key in sorted(changes):
        change = changes[key]
        if change is None:
            yield RunRecord(
                commit_ts,
                start_ts,
                key,
                POSSIBLE if key in possible else EXPECTED,
                source,
                b"",
                b"",
            )
        else:
            kind = DELETE if change.is_delete else PUT
            yield RunRecord(commit_ts, start_ts, key, kind, source, change.value, change.old_value)


def _joined(
    records: Iterable[RunRecord], prewrites: list[Iterator[RunRecord]]
) -> Iterator[RunRecord]:
    """Yield one whole change a key: it came as one, or its commit and its prewrite did."""
    stored = groupby(heapq.merge(*prewrites, key=_key), key=_key) if prewrites else iter(())
    at = next(stored, None)
    for key, group in groupby(records, key=_key):
        committed = list(group)
        prewrite: RunRecord | None = None
        while at is not None and at[0] <= key:
            if at[0] == key:
                # A later generation of a pipelined transaction replaces an earlier one.
                prewrite = max(at[1], key=attrgetter("commit_ts"))
            at = next(stored, None)
        whole = next((record for record in committed if record.kind in (PUT, DELETE)), None)
        if whole is not None:
            yield whole
        elif prewrite is not None:
            yield prewrite._replace(commit_ts=committed[0].commit_ts)
        elif any(record.kind == EXPECTED for record in committed):
            first = committed[0]
            raise LostPrewriteError(
                f"key {key.hex()} of transaction {first.start_ts}, committed at"
                f" {first.commit_ts}, has no prewrite"
            )
