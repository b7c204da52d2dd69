"""A command's end looks for no garbage: what it made goes with the process."""

from __future__ import annotations

import gc
import subprocess
import sys

from sluice.cli._garbage import _collect_again
from tests.cli.typed import ROOT


def test_python_s_end_has_nothing_to_look_through() -> None:
    script = (
        "import atexit, gc, sys; sys.argv = ['sluice', '--help'];"
        " atexit.register(lambda: print(gc.get_freeze_count() > 1_000, len(gc.get_objects()) < 100,"
        " file=sys.stderr)); from sluice.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "True True\n")


def test_status_collects_again_without_looking_through_what_it_made() -> None:
    looks: list[str] = []
    gc.disable()
    made = [[number] for number in range(50_000)]
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    try:
        _collect_again()
        more = [[number] for number in range(100)]
    finally:
        gc.callbacks.pop()
        gc.enable()
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert looks == [], len(made + more)
