"""Manners of Spark's Python workers, which live through thousands of small tasks."""

from __future__ import annotations

import gc

_frozen = False


def freeze_loaded() -> None:
    """Call it when a task is done. The first time in a process it takes everything that is loaded by now out of the
    garbage collector's sight: Spark collects after every task, and going through all of pyarrow, pandas and grpc costs
    60 to 100 ms of CPU, more than a small window's work.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()
