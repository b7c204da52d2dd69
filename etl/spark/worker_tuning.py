"""Manners of Spark's Python workers, which live through thousands of small tasks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

import pyarrow as pa

TEXTS = pa.schema([("text", pa.string())])
"""What goes in and out of functions that take JSON and give JSON."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_THRESHOLD_BYTES = 32 << 20  # bytes; the C library allows no more
_TRIM_THRESHOLD_BYTES = 64 << 20

_frozen_modules = 0
_malloc_tuned = False


def freeze_gc() -> None:
    """Call it when a task is done.

    Where modules were loaded since the last time, everything that is there by now goes out of the
    garbage collector's sight: Spark collects after every task, and going through all of pyarrow,
    pandas and grpc costs 60 to 100 ms of CPU, more than a small window's work. The first task
    doesn't load all that later ones need.
    """
    global _frozen_modules
    if _frozen_modules != len(sys.modules):
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def tune_malloc() -> None:
    """Call it where buffers of MiBs come and go: from then on at most 64 MiB of what is freed stays
    with the process, for the next one. Else the C library gives it back to the system each time,
    and to take it anew, page by page, costs a fifth of landing a backlog. With another C library
    nothing happens.
    """
    global _malloc_tuned
    if not _malloc_tuned:
        _malloc_tuned = True
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
