"""Limit the frames without a call that clients may send: per connection, and over all of them.

A connection may send some each second; all connections share a much larger reserve. Those that
exceed it are read again in turns, which take at most a share of the event loop's time.
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


class SharedFrameBudget:
    """Hold the frames that all connections may send together beyond their own allowances."""

    __slots__ = ("_counted", "_left", "_rate")

    def __init__(self, rate: int) -> None:
        """`rate`: frames a second."""
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
    """`left` goes down with each such frame; below zero the connection isn't read for a while."""

    __slots__ = ("_counted", "_rate", "_shared", "left", "over_since")

    def __init__(self, rate: int, shared: SharedFrameBudget) -> None:
        """`rate`: frames a second that this connection may send whatever others do."""
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


class PausedReads:
    """Resume connections that aren't read because they exceeded their allowances.

    The longest paused comes first. Belongs to the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._paused: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, resume: Callable[[], None]) -> None:
        """Call `resume` after the pause, as soon as those before it are through."""
        self._paused.append((self._loop.time() + _READ_PAUSE_S, resume))
        if self._timer is None:
            self._timer = self._loop.call_later(_READ_PAUSE_S, self._resume)

    def _resume(self) -> None:
        now = self._loop.time()
        until = now + _TURN_S
        while self._paused and self._paused[0][0] <= now and self._loop.time() < until:
            self._paused.popleft()[1]()
        self._timer = None
        if self._paused:
            due_s = self._paused[0][0] - self._loop.time()
            self._timer = self._loop.call_later(max(due_s, _REST_S), self._resume)
