"""The debug pages look at a process that goes on working."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from sluice.pump_service.http import debug


@pytest.mark.parametrize(
    "page", [debug.stacks, lambda: debug.profile(0.05, threading.Event())], ids=["stack", "profile"]
)
def test_no_garbage_is_collected_while_the_threads_are_looked_at(page, monkeypatch):
    """Else the process may stop for good: CPython gh-106883, which Debian 12's 3.11.2 has."""
    collecting = []
    real = sys._current_frames

    def look():
        collecting.append(gc.isenabled())
        return real()

    monkeypatch.setattr(sys, "_current_frames", look)
    assert "test_no_garbage" in page() or page is not debug.stacks
    assert collecting and not any(collecting)
    assert gc.isenabled()


def test_a_profile_ends_when_it_is_told_to():
    stop = threading.Event()
    stop.set()
    assert debug.profile(100, stop) == ""


def test_a_profile_keeps_so_many_different_stacks_and_counts_the_others(monkeypatch):
    monkeypatch.setattr(debug, "_MAX_STACKS", 0)
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    (line,) = debug.profile(100, stop).splitlines()
    assert line.startswith("(more stacks") and int(line.rsplit(" ", 1)[1]) > 0
