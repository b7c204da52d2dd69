"""Places where tests make the store die or fail; off unless SLUICE_FAILPOINTS is set.

SLUICE_FAILPOINTS="writer.after_write=kill@3,vlog.fsync=error" : at the third pass of the first, SIGKILL to this process;
at every pass of the second an OSError(EIO). Further actions: `sleep:<seconds>`, and `nospace` (OSError(ENOSPC)).
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
    if _points and name in _points:
        _run(_points[name], name)


def armed(name: str) -> bool:
    """Whether the next `hit(name)` will act (for places that prepare a partial step)."""
    point = _points.get(name)
    return point is not None and (point.nth == 0 or point.passed + 1 == point.nth)


def _run(point: _Point, name: str) -> None:
    point.passed += 1
    if point.nth and point.passed != point.nth:
        return
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
