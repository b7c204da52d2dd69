"""Limit the frames without a call that clients may send, and the event loop's time for strangers.

A connection may send some frames each second; all connections share a much larger reserve. Those
that exceed it are read again in turns, which take at most a share of the event loop's time. So are
strangers, the connections of addresses that have never written, once they used up their share.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

_FRAMES_PER_DRAW = 64
"""Frames that a connection draws at a time from the shared budget."""
_BURST_WINDOW_S = 0.2
"""How many seconds of the shared rate may be used up at once."""
_FIRST_FRAMES = 20
"""Frames that a new connection may send at once: some times what gRPC's clients begin with. A crowd
that reconnects has no more.
"""
_READ_PAUSE_S = 0.05
"""How long, at least, a connection that has used its allowance up isn't read."""
_TURN_S, _REST_S = 0.002, 0.006
"""How long connections are resumed at a stretch, and the time until the next stretch begins.

Together all clients beyond their allowances get a quarter of the loop, however many they are.
"""
_STRANGERS_SHARE_RATIO, _STRANGERS_BURST_S = 0.25, 0.005
"""What strangers get of the loop's time outside of those turns, and how much of it at once.

Else a turn of the loop would be as long as a crowd is large, and each writer would wait for it.
"""


class SharedFrameBudget:
    """Hold the frames that all connections may send together beyond their own allowances."""

    __slots__ = ("_counted", "_left", "_rate")

    def __init__(self, rate: int) -> None:
        """Create the shared frame budget; `rate`: frames a second."""
        self._rate = rate
        self._left = rate * _BURST_WINDOW_S
        self._counted = time.monotonic()

    def draw(self, now: float) -> int:
        """Return frames that one connection may send of it now; 0 if none are left."""
        self._left = min(
            self._left + (now - self._counted) * self._rate, self._rate * _BURST_WINDOW_S
        )
        self._counted = now
        if self._left < _FRAMES_PER_DRAW:
            return 0
        self._left -= _FRAMES_PER_DRAW
        return _FRAMES_PER_DRAW


class FrameRateLimit:
    """A frame rate limit.

    `left` goes down with each such frame; below zero the connection isn't read for a while.
    """

    __slots__ = ("_counted", "_rate", "_shared", "left", "over_since")

    def __init__(self, rate: int, shared: SharedFrameBudget) -> None:
        """Create the frame rate limit.

        `rate`: frames a second that this connection may send whatever others do.
        """
        self._rate = rate
        self._shared = shared
        self.left = float(min(rate, _FIRST_FRAMES))
        self._counted = time.monotonic()
        self.over_since = 0.0
        """Since when the connection has exceeded its allowance; 0 while it is within it."""

    def is_used_up(self) -> bool:
        """Return whether no frame may be handled now."""
        if self.left >= 0:
            return False
        now = time.monotonic()
        self.earn((now - self._counted) * self._rate)
        self._counted = now
        while self.left < 0 and (more := self._shared.draw(now)):
            self.left += more
        return self.left < 0

    def earn(self, frames: float) -> None:
        """Allow some more, up to what a second allows."""
        self.left = max(self.left, min(self.left + frames, float(self._rate)))


class StrangersShare:
    """Hold the loop's time for reading strangers as soon as something comes."""

    __slots__ = ("_clock", "_counted", "_left_s", "is_counted")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left_s = _STRANGERS_BURST_S
        self._counted = clock()
        self.is_counted = False
        """True while the time is counted already, here or in a turn of `PausedReads`."""

    def is_left(self) -> bool:
        """Return whether a stranger may be read now."""
        now = self._clock()
        earned_s = (now - self._counted) * _STRANGERS_SHARE_RATIO
        self._left_s = min(self._left_s + earned_s, _STRANGERS_BURST_S)
        self._counted = now
        return self._left_s > 0

    def read(self, handle: Callable[[bytes], None], data: bytes) -> bool:
        """Call `handle(data)` and charge its time; False if a stranger may not be read now."""
        if self.is_counted:
            handle(data)
            return True
        if not self.is_left():
            return False
        began = self._counted
        self.is_counted = True
        try:
            handle(data)
        finally:
            self.is_counted = False
            self._left_s = max(self._left_s - (self._clock() - began), -_STRANGERS_BURST_S)
        return True


class PausedReads:
    """Resume connections that aren't read because they or all strangers exceeded their share.

    The longest paused comes first, but one within its own allowance before all others. Belongs to
    the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, strangers: StrangersShare) -> None:
        self._loop = loop
        self._strangers = strangers
        self._paused: deque[tuple[float, Callable[[], None]]] = deque()
        self._put_off: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def add(self, resume: Callable[[], None]) -> None:
        """Call `resume` after the pause, as soon as those before it are through."""
        self._paused.append((self._loop.time() + _READ_PAUSE_S, resume))
        self._wake_in(_READ_PAUSE_S)

    def put_off(self, resume: Callable[[], None]) -> None:
        """Call `resume` as soon as those put off before it are through."""
        self._put_off.append(resume)
        self._wake_in(_REST_S)

    def _wake_in(self, delay_s: float) -> None:
        due = self._loop.time() + delay_s
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._timer = None
        now = self._loop.time()
        until = now + _TURN_S
        self._strangers.is_counted = True
        try:
            while self._loop.time() < until:
                if self._put_off:
                    self._put_off.popleft()()
                elif self._paused and self._paused[0][0] <= now:
                    self._paused.popleft()[1]()
                else:
                    break
        finally:  # the others go on where one fails
            self._strangers.is_counted = False
            if self._put_off:
                self._wake_in(_REST_S)
            elif self._paused:
                self._wake_in(max(self._paused[0][0] - self._loop.time(), _REST_S))
