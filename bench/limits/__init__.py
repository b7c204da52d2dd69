"""Bare programs that measure what this machine can do by itself: `python -m sluice.bench.limits`.

What Sluice does on the machine can be given as a share of it. None of the programs shares code
with a stage of Sluice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

Figures = dict[str, float]
"""Figures by a name that ends in the unit."""

Round = Callable[[float], Figures]
"""Takes each of a part's figures once, in about this many seconds each.

Every round gives the same names.
"""

Probe = Callable[[Path], AbstractContextManager[Round]]
"""A part of the benchmark.

What it needs is made and started in a folder of its own when it is entered, and gone when it is
left.
"""
