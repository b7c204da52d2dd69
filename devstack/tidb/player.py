"""Replays a recording into pumps, as TiDB would write it.

What TiDB guarantees and a pump builds on is kept, whatever the speed: both binlogs of a transaction
go to one pump; the commit timestamp is taken after the Prewrite's acknowledgement, so a Commit is
sent only when its own Prewrite and the Prewrite of every transaction with a smaller commit_ts are
acknowledged; a rolled back transaction gets its Rollback. Within that, records go out in recorded
order, many at a time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sluice.devstack.recording import Record, Recording, Transaction
from sluice.devstack.tidb.row_writes import Image, RowWrites
from sluice.errors import SluiceError
from sluice.tidb import pb
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE
from sluice.tidb.tso import compose, physical_ms

if TYPE_CHECKING:
    from sluice.devstack.tidb.tidb_server import UpstreamState

_MAX_OPEN_TRANSACTIONS = 256  # Prewrites in flight
# how far Prewrites may be ahead of what their recorded order allows PD to have given out
_MAX_AHEAD_MS = 5000
# Commits and Rollbacks that wait for their pump before no more Prewrites are sent
_OPEN_SECONDS = 8192
_RETRY_INTERVAL_S = 0.5
_GIVE_UP_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 5.0


class ReplayError(SluiceError, RuntimeError):
    """A replay that can't go on."""

    hint = "replay into an empty stack: see `sluice replay --help`"


class PumpWriter(Protocol):
    """The player's part of a pump client.

    Either method raises an error if no pump took the binlog.
    """

    async def prewrite(self, start_ts: int, payload: bytes) -> None: ...

    async def finish(self, start_ts: int, payload: bytes) -> None: ...


@dataclass(slots=True)
class PlayerProgress:
    """Counts of transactions.

    `retried`: Prewrites that no pump took at first; `undelivered`: Commits and Rollbacks that
    their pump never took (it can ask TiKV); `refused`: commits that TiKV refused, rolled back by
    another client.
    """

    transactions: int = 0
    sent: int = 0
    acked: int = 0
    committed: int = 0
    rolled_back: int = 0
    done: int = 0
    retried: int = 0
    undelivered: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Replay options; `until_ts`: the last commit_ts to send, None for all.

    `speed`: 1.0 is the recorded pace, None as fast as the pumps acknowledge. `give_up_s`: how long
    a Prewrite that no pump takes is tried. Raises ReplayError.
    """

    until_ts: int | None = None
    speed: float | None = None
    give_up_s: float = _GIVE_UP_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.speed is not None and self.speed <= 0:
            raise ReplayError(f"speed {self.speed}: give a number above 0, or max")


class RecordingPlayer:
    """One replay."""

    def __init__(
        self,
        recording: Recording,
        writer: PumpWriter,
        state: UpstreamState,
        options: ReplayOptions,
    ) -> None:
        self._recording = recording
        self._writer = writer
        self._oracle, self._store = state.oracle, state.store
        self._history, self._commits = state.history, state.commits
        self._until_ts = options.until_ts
        self._speed = options.speed
        self._give_up_s = options.give_up_s
        self.progress = PlayerProgress()
        self._txns: dict[int, Transaction] = {}
        self._by_commit: dict[int, Transaction] = {}
        self._acked: set[int] = set()  # start_ts
        self._released: set[int] = set()  # start_ts, may commit
        self._rows = RowWrites()
        # of rows in partitions that a transaction writes, by start_ts
        self._images: dict[int, list[Image]] = {}
        self._seconds: dict[int, bytes] = {}  # payloads that the stream has reached, by start_ts
        self._slots = asyncio.Semaphore(_MAX_OPEN_TRANSACTIONS)
        self._room = asyncio.Event()
        self._room.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open_seconds = 0
        self._failure: BaseException | None = None
        self._stopping = False
        # monotonic s and recorded ms of the first record
        self._pace_from: tuple[float, int] | None = None
        self._paced_ms = 0

    @property
    def complete(self) -> bool:
        """Return whether everything was replayed."""
        return self.progress.done == self.progress.transactions

    def status(self) -> dict[str, Any]:
        """Return the counts as a JSON object."""
        return asdict(self.progress)

    async def run(self) -> None:
        """Replay everything; return when the last record is delivered.

        Raises RecordingError or ReplayError.
        """
        self._txns = await asyncio.to_thread(self._recording.transactions, self._until_ts)
        self.progress.transactions = len(self._txns)
        self._rows = await asyncio.to_thread(lambda: RowWrites(self._recording.meta_keys()))
        self._by_commit = {txn.commit_ts: txn for txn in self._txns.values() if txn.commit_ts}
        if self._until_ts is not None:
            self._history.cut(self._until_ts)
        self._oracle.begin_replay(
            self._by_commit, self._txns, self._recorded_now if self._speed else None
        )
        try:
            for record in self._recording.records(self._until_ts):
                if record.fake:
                    continue
                await self._pace(record)
                await self._turn(record)
                if self._failure or self._stopping:
                    break
            while self._tasks and not self._failure and not self._stopping:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._failure:
                raise self._failure
        finally:
            await self._wind_up()
            self._oracle.end_replay()

    async def stop(self) -> None:
        """Send nothing more.

        `run` then rolls back what is open, as far as the pumps take it, and returns.
        """
        self._stopping = True
        self._room.set()
        for task in list(self._tasks):
            task.cancel()

    async def _turn(self, record: Record) -> None:
        txn = self._txns[record.start_ts]
        if record.tp == PREWRITE:
            await self._room.wait()
            await self._slots.acquire()
            if self._stopping or self._failure:
                return
            if txn.second or txn.write:
                self._store.prewrite(txn.prewrite_key, txn.start_ts)
            if images := self._rows.images(record.payload):
                self._images[record.start_ts] = images
            self.progress.sent += 1
            self._spawn(self._send(record, txn))
        else:
            self._seconds[record.start_ts] = record.payload
            self._finish_if_due(txn)

    async def _send(self, record: Record, txn: Transaction) -> None:
        await self._oracle.send(txn.start_ts, _MAX_AHEAD_MS)
        await self._prewrite(record, txn)

    async def _prewrite(self, record: Record, txn: Transaction) -> None:
        try:
            deadline = time.monotonic() + self._give_up_s
            while True:
                try:
                    await self._writer.prewrite(txn.start_ts, record.payload)
                    break
                except Exception as error:
                    self.progress.retried += 1
                    if time.monotonic() > deadline:
                        raise ReplayError(
                            f"no pump took the prewrite of transaction {txn.start_ts} (record"
                            f" {record.number}) for {self._give_up_s:.0f} s: {error}; see that a"
                            " pump is online, then replay again"
                        ) from error
                    await asyncio.sleep(_RETRY_INTERVAL_S)
        finally:
            self._slots.release()
        self.progress.acked += 1
        if txn.start_ts in self._acked:
            return
        self._acked.add(txn.start_ts)
        if not txn.commit_ts:
            self._finish_if_due(txn)
            return
        for commit_ts in self._oracle.ack(txn.commit_ts):
            released = self._by_commit[commit_ts]
            self._released.add(released.start_ts)
            self._finish_if_due(released)

    def _finish_if_due(self, txn: Transaction) -> None:
        """End the transaction if its Prewrite is acknowledged and its turn has come.

        The stream must have reached its end, too.
        """
        ready = txn.start_ts in (self._released if txn.commit_ts else self._acked)
        if not ready or (txn.second and txn.start_ts not in self._seconds):
            return
        payload = self._seconds.pop(txn.start_ts, None)
        if txn.commit_ts:
            value = txn.write.short_value if txn.write else b""
            if self._store.commit(txn.prewrite_key, txn.start_ts, txn.commit_ts, value):
                for key in self._rows.commit(self._images.pop(txn.start_ts, ())):
                    self._store.commit(key, txn.start_ts, txn.commit_ts)
                self._history.committed(txn)
                self._oracle.committed(txn.commit_ts)
                self._commits.add(txn.commit_ts)
                self.progress.committed += 1
            else:
                self.progress.refused += 1
                payload = _rollback_of(txn) if payload else None
        elif txn.second or txn.write:
            self._store.rollback(txn.prewrite_key, txn.start_ts)
            self.progress.rolled_back += 1
        if payload is None:
            self.progress.done += 1
        else:
            self._open_seconds += 1
            if self._open_seconds >= _OPEN_SECONDS:
                self._room.clear()
            self._spawn(self._second(txn.start_ts, payload))

    async def _second(self, start_ts: int, payload: bytes) -> None:
        try:
            await self._writer.finish(start_ts, payload)
        except Exception:
            # TiDB lets it go as well: the pump asks TiKV about Prewrites without an end.
            self.progress.undelivered += 1
        finally:
            self._open_seconds -= 1
            self._room.set()
        self.progress.done += 1

    async def _wind_up(self) -> None:
        """Roll back open transactions after a stop or a failure, as a TiDB that shuts down."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        rollbacks = []
        for start_ts in self._acked:
            txn = self._txns[start_ts]
            if (txn.second or txn.write) and self._store.write_of(
                txn.prewrite_key, start_ts
            ) is None:
                self._store.rollback(txn.prewrite_key, start_ts)
                rollbacks.append(self._second(start_ts, _rollback_of(txn)))
        for txn in self._txns.values():
            self._store.release(txn.prewrite_key, txn.start_ts)
        if rollbacks:
            await asyncio.wait(
                [asyncio.ensure_future(r) for r in rollbacks], timeout=_STOP_TIMEOUT_S
            )

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() and not self._failure:
            self._failure = task.exception()
            self._room.set()

    async def _pace(self, record: Record) -> None:
        if self._speed is None:
            return
        due = physical_ms(record.commit_ts if record.tp == COMMIT else record.start_ts)
        if self._pace_from is None:
            self._pace_from = (time.monotonic(), due)
        self._paced_ms = max(self._paced_ms, due)
        started, first_ms = self._pace_from
        while not self._stopping and not self._failure:
            wait = started + (self._paced_ms - first_ms) / 1000 / self._speed - time.monotonic()
            if wait < 0.001:
                return
            await asyncio.sleep(min(wait, 0.2))

    def _recorded_now(self) -> int:
        if self._pace_from is None or self._speed is None:
            return 0
        started, first_ms = self._pace_from
        return compose(first_ms + int((time.monotonic() - started) * 1000 * self._speed))


def _rollback_of(txn: Transaction) -> bytes:
    """Return the Rollback binlog that TiDB writes for a transaction.

    It is its Prewrite without value, type and timestamps set.
    """
    message = pb.binlog.Binlog(
        tp=pb.binlog.Rollback,
        start_ts=txn.start_ts,
        commit_ts=0,
        prewrite_key=txn.prewrite_key,
        ddl_job_id=txn.ddl_job_id,
        ddl_schema_state=txn.ddl_schema_state,
    )
    encoded: bytes = message.SerializeToString()
    return encoded
