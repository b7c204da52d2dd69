"""Places where tests make the store die or fail; off unless SLUICE_FAILPOINTS is set.

SLUICE_FAILPOINTS="writer.after_write=kill@3,vlog.fsync=error" : at the third pass of the first, SIGKILL to this
process; at every pass of the second an OSError(EIO). Further actions: `sleep:<seconds>`, and `nospace`
(OSError(ENOSPC)).

`rpc.no_window=on` has the pump serve only what an original Pump does.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass


@dataclass(slots=True)
class _Point:
    action: str
    nth: int
    passed: int = 0


def _parse(text: str) -> dict[str, _Point]:
    points = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        points[name] = _Point(action, int(nth or 0))
    return points


_points = _parse(os.environ.get("SLUICE_FAILPOINTS", ""))


def configure(text: str) -> None:
    """Replaces the active failpoints (same syntax as the environment variable; "" turns all off)."""
    global _points
    _points = _parse(text)


def hit(name: str) -> None:
    """Runs what is configured for this place; nearly free when nothing is."""
    if _points and due(name):
        act(name)


def due(name: str) -> bool:
    """Counts a pass, and says whether the action is to run now (for places that prepare a partial step first)."""
    point = _points.get(name)
    if point is None:
        return False
    point.passed += 1
    return point.nth in (0, point.passed)


def act(name: str) -> None:
    """Runs the action of a point that is due."""
    point = _points[name]
    action, _, argument = point.action.partition(":")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "error":
        raise OSError(errno.EIO, f"failpoint {name}")
    elif action == "nospace":
        raise OSError(errno.ENOSPC, f"failpoint {name}")
    elif action == "sleep":
        time.sleep(float(argument))
    else:
        raise ValueError(f"failpoint {name}: unknown action {point.action!r}")
