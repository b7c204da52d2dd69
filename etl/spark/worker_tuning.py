"""Manners of Spark's Python workers, which live through thousands of small tasks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from sluice.etl.spark.errors import report_to_client

TEXTS = pa.schema([("text", pa.string())])
"""The input and output of functions that take JSON and give JSON."""
S = TypeVar("S")
WorkerMethod = Callable[[S, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_THRESHOLD_BYTES = 32 << 20  # bytes; the C library allows no more
_TRIM_THRESHOLD_BYTES = 64 << 20

_frozen_modules = 0
_malloc_tuned = False


def freeze_gc() -> None:
    """Freeze the garbage collector's objects; call it when a task is done.

    Where modules were loaded since the last time, all present objects leave the garbage collector's
    sight: Spark collects after every task, and going through all of pyarrow, pandas and grpc costs
    60 to 100 ms of CPU, more than a small window's work. The first task doesn't load all that later
    ones need.
    """
    global _frozen_modules
    if _frozen_modules != len(sys.modules):
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def worker_function(function: WorkerMethod[S]) -> WorkerMethod[S]:
    """Decorate what Spark's workers call: the client gets its errors, and each task tidies up."""

    @functools.wraps(function)
    def reported(self: S, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with report_to_client():
            yield from function(self, batches)
        freeze_gc()

    return reported


def column_values(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the values of the first column."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def text_batch(*texts: str) -> pa.RecordBatch:
    """Return a batch in TEXTS."""
    return pa.record_batch([pa.array(texts, pa.string())], schema=TEXTS)


def tune_malloc() -> None:
    """Keep up to 64 MiB of freed memory; call it where buffers of MiBs come and go.

    Else the C library gives it back to the system each time, and taking it again, page by page,
    costs a fifth of landing a backlog. With another C library nothing happens.
    """
    global _malloc_tuned
    if not _malloc_tuned:
        _malloc_tuned = True
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def raise_nofile_limit() -> None:
    """Raise the limit on open files to the hard limit.

    Shells often allow 1,024, and there is a file a table where many tables are written at a time.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
