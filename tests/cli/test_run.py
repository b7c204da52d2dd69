"""`sluice run`, which is `make run`: everything started, traffic replayed, compared, everything stopped."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embedded.processes import marked

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "tests" / "recordings" / "shop"

pytestmark = pytest.mark.e2e


def start(home, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "cli", "--home", str(home), *words], env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def small_shop(folder, labels):
    """The recording `shop` with only some of its snapshots."""
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("pump-data-dir*", "drainer-file"))
    listed = json.loads((folder / "snapshots.json").read_text())
    (folder / "snapshots.json").write_text(json.dumps([entry for entry in listed if entry["label"] in labels]))
    return folder


@pytest.mark.timeout(400)
def test_run_replays_compares_and_leaves_nothing_running(tmp_path):
    recording = small_shop(tmp_path / "shop", {"a_loaded", "b_mid"})
    child = start(tmp_path / "home", "run", "--recording", str(recording))
    try:
        output, _ = child.communicate(timeout=380)
    finally:
        child.kill()
    assert child.returncode == 0, output
    summary = dict(
        line.split(None, 1) for line in output.splitlines() if re.match(r"(transactions|differences|windows) ", line)
    )
    assert summary["differences"] == "0"
    assert summary["transactions"] == "5,672"
    assert int(summary["windows"]) > 0
    assert "snapshot a_loaded: 4 tables" in output
    assert marked(tmp_path / "home") == []


def test_a_run_that_is_told_to_end_stops_everything_it_started(tmp_path):
    child = start(tmp_path / "home", "run")
    try:
        for line in child.stdout:
            if line.startswith("mariadb"):
                break
        assert marked(tmp_path / "home")
        child.send_signal(signal.SIGTERM)
        assert child.wait(120) == 130
    finally:
        child.kill()
        child.stdout.close()
    assert marked(tmp_path / "home") == []


def test_a_run_that_was_killed_leaves_processes_which_down_ends(tmp_path):
    child = start(tmp_path / "home", "run")
    try:
        for line in child.stdout:
            if line.startswith("etcd"):
                break
    finally:
        child.kill()
        child.wait(60)
        child.stdout.close()
    time.sleep(0.5)
    assert marked(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-m", "cli", "--home", str(tmp_path / "home"), "down"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert marked(tmp_path / "home") == []
