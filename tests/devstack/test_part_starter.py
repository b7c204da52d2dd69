"""Whoever starts the stack sees at once what is started, and what is still waited for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sluice.devstack import part_starter
from sluice.devstack.launch import Service
from sluice.devstack.launch.service import ServiceNotReady
from sluice.devstack.part_starter import PartStarter


def test_a_start_prints_what_is_started_and_what_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_starter, "_REPORT_INTERVAL_S", 0.02)
    (tmp_path / "logs").mkdir()
    lines: list[str] = []

    def probe() -> None:
        if not any("waiting for slow" in line for line in lines):
            raise ServiceNotReady("not yet")

    sleep = (sys.executable, "-c", "import time; time.sleep(60)")
    children: dict[str, subprocess.Popen[bytes]] = {}
    starter = PartStarter(tmp_path, threading.Lock(), children)
    began = time.monotonic()
    try:
        starter.start(
            [Service("quick", sleep, {}, lambda: None), Service("slow", sleep, {}, probe)],
            lines.append,
        )
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    assert lines[0] == "starting quick, slow"
    assert any("waiting for" in line and "slow" in line for line in lines)
    assert sum("ready after" in line for line in lines) == 2 and time.monotonic() - began < 60
