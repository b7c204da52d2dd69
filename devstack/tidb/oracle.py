"""The timestamp oracle of the stand-in cluster's PD.

A timestamp (TSO) is ``physical_ms << 18 | logical``. TiDB asks PD for a transaction's commit
timestamp only after a pump has acknowledged its Prewrite, and the consumers of binlogs build on
that: having a fresh timestamp ``ts``, they know that the Prewrite of every transaction with
``commit_ts <= ts`` already lies in some pump. While a recording is replayed the commit timestamps
are given beforehand, so the oracle keeps the promise from the other side: it hands out nothing at
or above the smallest commit_ts whose Prewrite is not acknowledged yet (the *bound*).

It also never hands out a timestamp that the recording uses itself (PD never gives one timestamp
twice; a pump stores fake binlogs and Commits in one key space, so a repeated one would overwrite a
transaction).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable

from sluice.errors import SluiceError
from sluice.tidb.tso import LOGICAL_BITS, compose, physical_ms

_LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
# Room kept free below the bound, in timestamps. While the bound doesn't move (every pump is down,
# say) PD has to go on answering: a pump that starts again asks for a timestamp before it can
# acknowledge anything.
_RESERVE = 1 << (LOGICAL_BITS - 1)
# How far before the first recorded timestamp the clock of an idle cluster starts, in ms.
_IDLE_MARGIN_MS = 24 * 3600 * 1000


class OracleError(SluiceError, RuntimeError):
    """No timestamp can be given now, or one was asked for that no PD would give."""

    hint = "start the stand-in cluster again with the recording that it served"


class Oracle:
    """Give strictly increasing timestamps.

    Not thread-safe, lives on the event loop of the cluster.

    Free running, physical time advances with `clock` (seconds, monotonic) from the last value. With
    a `ceiling` (the smallest timestamp of a recording that is yet to be replayed) time starts a day
    before it, and slows down so as never to reach it, however long the cluster idles.
    """

    def __init__(
        self,
        *,
        base_ts: int | None = None,
        ceiling: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if base_ts is None:
            base_ts = (
                compose(int(time.time() * 1000))
                if ceiling is None
                else ceiling - compose(_IDLE_MARGIN_MS)
            )
        self._clock = clock
        self._last = base_ts
        self._base = base_ts
        self._base_at = clock()
        self._ceiling = ceiling
        self._replaying = False
        self._commits: list[int] = []
        self._index: dict[int, int] = {}
        self._acked = bytearray()
        self._next = 0  # the first transaction, by commit_ts, whose Prewrite is not acknowledged
        self._used: Collection[int] = frozenset()
        self._committed = self._sent = 0
        self._hint: Callable[[], int] | None = None
        self._moved = asyncio.Event()

    @property
    def last(self) -> int:
        """Return the largest timestamp handed out so far, or the start of time."""
        return self._last

    @property
    def bound(self) -> int | None:
        """Return a TSO above all that were and will be handed out; None: no limit."""
        if self._replaying:
            return self._commits[self._next] if self._next < len(self._commits) else None
        return self._ceiling

    def begin_replay(
        self,
        commits: Iterable[int],
        used: Iterable[int] = (),
        hint: Callable[[], int] | None = None,
    ) -> None:
        """Start replay mode.

        `commits`: the commit_ts of every transaction that will be committed. `used`: further
        timestamps that the recording uses (start timestamps). `hint`: the recorded time that a
        paced replay has reached, as a TSO.
        """
        self._commits = sorted(commits)
        if self._commits and self._commits[0] <= self._last:
            raise OracleError(
                f"timestamp {self._last} was handed out, the recording commits at"
                f" {self._commits[0]}: a cluster's time can't go back; start a fresh stand-in"
                " cluster for another replay"
            )
        self._index = {ts: n for n, ts in enumerate(self._commits)}
        if len(self._index) != len(self._commits):
            raise OracleError("two transactions of the recording have the same commit_ts")
        self._acked = bytearray(len(self._commits))
        self._next = 0
        self._used = frozenset(self._commits).union(used)
        self._hint = hint
        self._replaying = True
        self._wake()

    def ack(self, commit_ts: int) -> list[int]:
        """Note that the Prewrite of the transaction with `commit_ts` is acknowledged by a pump.

        Returns the commit timestamps that may now be committed, ascending: their own Prewrite and
        the Prewrite of every transaction with a smaller commit_ts is acknowledged. Each is
        returned once.
        """
        self._acked[self._index[commit_ts]] = 1
        first = self._next
        while self._next < len(self._commits) and self._acked[self._next]:
            self._next += 1
        if self._next == first:
            return []
        self._wake()
        return self._commits[first : self._next]

    def committed(self, commit_ts: int) -> None:
        """Note that the transaction with `commit_ts` is committed.

        Later timestamps should be larger.
        """
        self._committed = max(self._committed, commit_ts)

    async def send(self, start_ts: int, ahead_ms: int) -> None:
        """Let time go on to `start_ts`, whose transaction is about to send its Prewrite.

        As far as the bound allows. Returns when that is no more than `ahead_ms` short of it, for
        no client has a timestamp of the future.
        """
        self._sent = max(self._sent, start_ts)
        while self.bound is not None and self.bound <= start_ts - compose(ahead_ms):
            self._moved.clear()
            await self._moved.wait()

    def end_replay(self) -> None:
        """Run freely again.

        What the recording has left is not replayed any more and bounds nothing.
        """
        finished = self._next >= len(self._commits)
        self._last = max([self._last, self._committed, *(self._used if finished else ())])
        self._base, self._base_at, self._ceiling = self._last, self._clock(), None
        self._replaying, self._hint = False, None
        self._wake()

    def try_take(self, count: int = 1) -> int | None:
        """Take `count` timestamps at once; return the largest.

        None when there is no room below the bound.

        All of ``ts - count + 1 .. ts`` have the same physical part, are larger than all before,
        smaller than the bound and unused by the recording.
        """
        if not 1 <= count <= _LOGICAL_MASK:
            raise OracleError(
                f"{count} timestamps at once: a request asks for 1 to {_LOGICAL_MASK}"
            )
        bound = self.bound
        largest = self._place(self._next_wanted(bound), count)
        if bound is not None and largest >= bound:
            largest = self._place(self._last + 1, count)
            if largest >= bound:
                return None
        self._last = largest
        return largest

    async def take(self, count: int = 1, timeout_s: float = 3.0) -> int:
        """Take timestamps as `try_take`, but wait up to `timeout_s` for room.

        Raises OracleError when there is none by then.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ts = self.try_take(count)
            if ts is not None:
                return ts
            self._moved.clear()
            left = deadline - time.monotonic()
            if left <= 0:
                raise OracleError(
                    f"generate timestamp failed: {count} timestamps after {self._last} don't fit"
                    f" below {self.bound}, the next transaction whose prewrite no pump has"
                    " acknowledged yet"
                )
            try:
                await asyncio.wait_for(self._moved.wait(), left)
            except TimeoutError:
                continue

    def _next_wanted(self, bound: int | None) -> int:
        """Return the smallest timestamp that should be handed out next.

        Before the rules about room and used ones.
        """
        if not self._replaying:
            return max(self._last + 1, self._free_running())
        wanted = max(self._committed, self._sent) + 1
        if self._hint is not None:
            wanted = max(wanted, self._hint())
        if bound is not None:
            wanted = min(wanted, compose(physical_ms(bound)) - _RESERVE)
        return max(self._last + 1, wanted)

    def _free_running(self) -> int:
        elapsed_ms = (self._clock() - self._base_at) * 1000
        if self._ceiling is not None:
            room_ms = max(0.0, (self._ceiling - self._base) / (1 << LOGICAL_BITS) - 1)
            elapsed_ms = room_ms * -math.expm1(-elapsed_ms / room_ms) if room_ms else 0.0
        return self._base + compose(int(elapsed_ms))

    def _place(self, smallest: int, count: int) -> int:
        """Return the largest of `count` timestamps from `smallest` on, in one millisecond.

        None of them is used.
        """
        while True:
            if physical_ms(smallest) != physical_ms(smallest + count - 1):
                smallest = compose(physical_ms(smallest) + 1)
            if not self._used:
                return smallest + count - 1
            clash = next(
                (ts for ts in range(smallest + count - 1, smallest - 1, -1) if ts in self._used),
                None,
            )
            if clash is None:
                return smallest + count - 1
            smallest = clash + 1

    def _wake(self) -> None:
        self._moved.set()
