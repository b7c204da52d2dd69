"""Select the landed windows of the next batch, as far as limits and operators allow."""

from __future__ import annotations

import logging
import threading
import time

from sluice.etl.apply._adaptive_limits import BatchLimits
from sluice.etl.apply._batch import ApplyLog
from sluice.etl.downstream import InFlight
from sluice.relay import AlignedChunk, PendingChunks, RelayGapError, WindowRecord
from sluice.relay.url import local_folder
from sluice.relay.wakeup import WakeupSocket

log = logging.getLogger("sluice.apply")

_POLL_INTERVAL_S = 0.02
_WAKEUP_TIMEOUT_S = 0.3
_CONTROL_INTERVAL_S = 0.25
_FIND_INTERVAL_S, _REMOTE_FIND_INTERVAL_S = 10.0, 60.0
# An object store charges for each request.
_REMOTE_POLL_INTERVAL_S, _REMOTE_CONTROL_INTERVAL_S = 0.25, 2.0
_MAX_TS = 2**63 - 1
MAX_WINDOWS = 2_000
"""The most windows in one batch.

Landing makes an empty window every half second or so, and applying may have been paused for days.
"""
_WINDOW_CACHE_TTL_S = 1.0
"""How long a window that was read is used again."""


class WindowSelector:
    """Return the windows of one batch after the other with `next_batch`.

    One thread uses it; others may set `stopped`.
    """

    def __init__(  # noqa: PLR0913 what bounds a batch
        self,
        relay: ApplyLog,
        limits: BatchLimits,
        in_flight: InFlight | None,
        until_ts: int | None,
        stopped: threading.Event,
        safe_until: int = 0,
    ) -> None:
        """Select no window after `until_ts` (TSO).

        The first batch ends where `in_flight`, the in-flight batch, does: limits and orders of
        operators don't count for it. Batches that begin before `safe_until` (TSO) aren't cut.
        """
        self._relay = relay
        self._limits = limits
        self._first_hi = in_flight.until if in_flight else None
        self._until_ts = until_ts
        self._stopped = stopped
        self._safe_until = safe_until
        self._wakeup = WakeupSocket(relay.url)
        self._is_remote_store = local_folder(relay.url) is None
        self._find_due = 0.0
        self._missed_window = -1, 0.0
        """The position after which an object store had no window, and when that was seen."""
        self._following: tuple[WindowRecord | None, float] = None, 0.0
        """The window after the last batch, which was too much for it, and when it was read."""
        self._is_wait_logged = False
        self._control_due = 0.0
        self._paused = False
        self._until: int | None = None
        self._at_boundary = -1
        self._cut: WindowRecord | None = None
        """The window in the middle of which the last batch ended."""
        self.pending_chunks = PendingChunks()
        """The aligned chunks from the last batch's beginning on."""
        self.cut_tables: int | None = None
        """The last batch's `BatchPayload.cut_tables`."""

    def wake(self) -> None:
        """Wake up the waiting thread, to check `stopped`."""
        self._wakeup.wake()

    def close(self) -> None:
        """Close the wakeup socket."""
        self._wakeup.close()

    def next_batch(self, position: int) -> tuple[tuple[WindowRecord, ...], int]:
        """Return the next landed windows after `position`, and the TSO at which their batch ends.

        Waits for the first window, and while applying is paused. Returns no windows once stopped.
        Raises RelayGapError and other relay errors.
        """
        windows = self._take_batch(position)
        if not windows:
            return (), position
        hi = min(windows[-1].hi, self._end())
        # Read after the windows: a window that is visible has its aligned chunks visible before it.
        self.pending_chunks = self._relay.aligned_chunks.agenda(position + 1)
        if self._first_hi is None:
            hi = min([hi, *(appointment.at_ts for appointment in self.pending_chunks.pending)])
            windows = [window for window in windows if window.lo < hi]
        self._first_hi = None
        self._cut = windows[-1] if hi < windows[-1].hi else None
        if self._cut is None:  # listing an hour's windows each time would cost more than all else
            self._at_boundary = hi
            self._schedule_find()
        return tuple(windows), hi

    def chunks_at(self, position: int) -> list[AlignedChunk]:
        """Return the aligned chunks at `position` (TSO); waits while applying is paused."""
        found = [
            one
            for one in self._relay.aligned_chunks.agenda(position).pending
            if one.at_ts == position
        ]
        while found and not self._may_continue(position - 1):
            if self._stopped.wait(_POLL_INTERVAL_S):
                return []
        return found

    def _take_batch(self, position: int) -> list[WindowRecord]:
        while (first := self._find(position) if self._may_continue(position) else None) is None:
            self._wakeup.wait(_WAKEUP_TIMEOUT_S if self._wakeup.is_reliable else _POLL_INTERVAL_S)
            if self._stopped.is_set():
                return []
        self._wakeup.found()
        self.cut_tables = self._cut_tables_after(position)
        windows = [first]
        rows, size = first.changes, sum(part.bytes for part in first.parts)
        tables = set(first.tables)
        while not self._stopped.is_set() and windows[-1].hi < self._end():
            following = self._relay.next(windows[-1].hi)
            self._following = following, time.monotonic()
            # An in-flight batch is written again as a whole.
            if following is None and self._first_hi is not None:
                self._wait_for_in_flight(windows[-1].hi)
                continue
            if following is None:
                break
            rows += following.changes
            size += sum(part.bytes for part in following.parts)
            tables.update(following.tables)
            if self._first_hi is None and (
                rows > self._limits.max_rows
                or size > self._limits.max_bytes
                # a batch that is cut has as many tables in a transaction as preparing decides
                or (self.cut_tables is None and len(tables) > self._limits.max_tables)
                or len(windows) == MAX_WINDOWS
            ):
                break
            windows.append(following)
        return windows if not self._stopped.is_set() else []

    def _cut_tables_after(self, position: int) -> int | None:
        """Return the `cut_tables` of a batch that begins at `position`.

        Parts of what is written again may be downstream, so that is one transaction. A cut costs a
        commit, and each reads the operators' orders, which is a request to an object store.
        """
        is_whole = self._first_hi is not None or position < self._safe_until
        return None if is_whole or self._is_remote_store else self._limits.cut_tables

    def _wait_for_in_flight(self, position: int) -> None:
        if not self._is_wait_logged:
            log.warning(
                "an in-flight batch reaches to commit_ts %s, but only changes through %s are"
                " landed; waiting for the rest to be landed again",
                self._first_hi,
                position,
            )
            self._is_wait_logged = True
        self._stopped.wait(_POLL_INTERVAL_S)

    def _find(self, position: int) -> WindowRecord | None:
        if self._cut is not None and self._cut.lo < position < self._cut.hi:
            return self._cut
        missed, at = self._missed_window
        if (
            self._is_remote_store
            and position == missed
            and time.monotonic() < at + _REMOTE_POLL_INTERVAL_S
        ):
            return None
        following, seen_at = self._following
        if (
            following is not None
            and following.lo == position
            and time.monotonic() < seen_at + _WINDOW_CACHE_TTL_S
        ):
            return following
        window = self._relay.next(position)
        self._missed_window = position, time.monotonic()
        if window is not None or self._is_boundary(position):
            return window
        self._schedule_find()
        window = self._relay.find(position)
        if window is not None and window.lo > position:
            raise RelayGapError(
                f"{self._relay.url}: the checkpoint is at {position}, but the next landed window"
                f" begins at {window.lo}: what lies between was removed or never landed",
                hint=(
                    "land it again, or copy the downstream again as of a later time and set its"
                    " checkpoint"
                ),
            )
        self._at_boundary = position if window is None else -1
        return window

    def _may_continue(self, position: int) -> bool:
        """Return whether orders allow applying beyond `position`.

        They are read again periodically.
        """
        now = time.monotonic()
        if now >= self._control_due:
            self._control_due = now + (
                _REMOTE_CONTROL_INTERVAL_S if self._is_remote_store else _CONTROL_INTERVAL_S
            )
            control = self._relay.control()
            until = min(
                (ts for ts in (control.apply_until_ts, self._until_ts) if ts is not None),
                default=None,
            )
            if (control.apply_paused, until) != (self._paused, self._until):
                log.info(
                    "applying %s",
                    (
                        "is paused"
                        if control.apply_paused
                        else "is resumed"
                        if until is None
                        else f"runs through {until}"
                    ),
                )
            self._paused, self._until = control.apply_paused, until
        return not self._paused and position < self._end()

    def _end(self) -> int:
        """Return the TSO at which the next batch ends at the latest."""
        if self._first_hi is not None:
            return self._first_hi
        return _MAX_TS if self._until is None else self._until

    def _schedule_find(self) -> None:
        self._find_due = time.monotonic() + (
            _REMOTE_FIND_INTERVAL_S if self._is_remote_store else _FIND_INTERVAL_S
        )

    def _is_boundary(self, position: int) -> bool:
        """Return whether `position` is a known end of a window, so that the next must begin there.

        Such a window is found by name in O(1). The knowledge expires, as windows may be removed.
        """
        return self._at_boundary == position and time.monotonic() <= self._find_due
