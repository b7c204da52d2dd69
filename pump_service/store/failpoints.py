"""Let tests kill the store or make it fail at named places.

Off unless SLUICE_FAILPOINTS is set.

SLUICE_FAILPOINTS="writer.after_write=kill@3,vlog.fsync=error" sends SIGKILL to this process at the
third pass of the first place, and raises OSError(EIO) at every pass of the second. Further actions:
`sleep:<seconds>`, and `nospace` (OSError(ENOSPC)). `rpc.no_window=on` makes the pump serve only
what an original Pump does.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass


@dataclass(slots=True)
class _Failpoint:
    action: str
    nth: int
    passed: int = 0


def _parse(text: str) -> dict[str, _Failpoint]:
    points = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        points[name] = _Failpoint(action, int(nth or 0))
    return points


_failpoints = _parse(os.environ.get("SLUICE_FAILPOINTS", ""))


def configure(text: str) -> None:
    """Replace the active failpoints (same syntax as the environment variable; "" turns all off)."""
    global _failpoints
    _failpoints = _parse(text)


def hit(name: str) -> None:
    """Run the action configured for this place; nearly free if there is none."""
    if _failpoints and due(name):
        run_action(name)


def due(name: str) -> bool:
    """Count a pass.

    Return whether to run the action now (for places that first prepare a partial step).
    """
    point = _failpoints.get(name)
    if point is None:
        return False
    point.passed += 1
    return point.nth in (0, point.passed)


def run_action(name: str) -> None:
    """Run the action of a point that is due."""
    point = _failpoints[name]
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
