"""Types that the parts of `sluice.bench.limits` have in common."""

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
