"""What Spark's workers keep: out of the garbage collector's sight, and of what they have freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_STORY = """
import gc
from sluice.etl.spark.worker_tuning import freeze_gc
freeze_gc()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
freeze_gc()
assert gc.get_freeze_count() == first, "a task that loads nothing new"
import xml.dom.minidom
freeze_gc()
print(gc.get_freeze_count() - first)
"""


def test_what_a_later_task_loads_is_frozen_too() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _STORY], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(found.stdout) > 1000


_BUFFERS = """
import resource
from sluice.etl.spark.worker_tuning import tune_malloc
tune_malloc()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        buffers = [bytearray(b"x") * (8 << 20) for _ in range(4)]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of the GNU C library")
def test_large_buffers_are_not_taken_anew_from_the_system() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _BUFFERS], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(found.stdout) < 2048  # pages: what one buffer has, of eighty
