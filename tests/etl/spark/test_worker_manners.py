"""What Spark's workers keep out of the garbage collector's sight."""

from __future__ import annotations

import subprocess
import sys

_STORY = """
import gc
from etl.spark.worker import freeze_loaded
freeze_loaded()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
freeze_loaded()
assert gc.get_freeze_count() == first, "a task that loads nothing new"
import xml.dom.minidom
freeze_loaded()
print(gc.get_freeze_count() - first)
"""


def test_what_a_later_task_loads_is_frozen_too() -> None:
    found = subprocess.run([sys.executable, "-c", _STORY], check=True, capture_output=True, text=True, timeout=60)
    assert int(found.stdout) > 1000
