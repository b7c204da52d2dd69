"""Manners of Spark's Python workers, which live through thousands of small tasks."""

from __future__ import annotations

import gc
import sys

import pyarrow as pa

TEXTS = pa.schema([("text", pa.string())])
"""What goes in and out of functions that take JSON and give JSON."""

_frozen_modules = 0


def freeze_loaded() -> None:
    """Call it when a task is done. Where modules were loaded since the last time, everything that is there by now goes
    out of the garbage collector's sight: Spark collects after every task, and going through all of pyarrow, pandas and
    grpc costs 60 to 100 ms of CPU, more than a small window's work. The first task doesn't load all that later ones
    need.
    """
    global _frozen_modules
    if _frozen_modules != len(sys.modules):
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()
