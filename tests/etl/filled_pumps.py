"""Pumps that have taken a whole recording."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from sluice.devstack.control import ClusterControl
from sluice.devstack.stack import Stack

_PATIENCE_S = 240


def fill(stack: Stack, recording: Path, pumps: Sequence[str] = ("pump-1", "pump-2")) -> None:
    """Start etcd, the stand-in cluster and pumps, and send them the recording."""
    stack.up(["etcd", "cluster", *pumps], recording=recording)
    control = ClusterControl(stack.site().ports["cluster-control"])
    control.replay(None, "max", "range")
    deadline = time.monotonic() + _PATIENCE_S
    while (status := control.status())["state"] != "done":
        assert status["state"] != "failed" and time.monotonic() < deadline, status
        time.sleep(0.05)
