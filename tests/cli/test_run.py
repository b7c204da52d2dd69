"""`sluice run`, which is `make run`: everything started, traffic replayed, compared, everything
stopped.
"""

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

from sluice.devstack.processes import tagged

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "tests" / "recordings" / "shop"

pytestmark = pytest.mark.e2e


def start(home, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", "--home", str(home), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def small_shop(folder, labels):
    """The recording `shop` with only some of its snapshots."""
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("pump-data-dir*", "drainer-file"))
    listed = json.loads((folder / "snapshots.json").read_text())
    (folder / "snapshots.json").write_text(
        json.dumps([entry for entry in listed if entry["label"] in labels])
    )
    return folder


def finished(child):
    """What it printed, and the figures at the end by name."""
    try:
        output, _ = child.communicate(timeout=580)
    finally:
        child.kill()
    assert child.returncode == 0, output
    return output, dict(
        re.findall(r"^([a-z ]{2,14}?) {2,}(\S.*)$", output.split("\n\n")[-1], re.MULTILINE)
    )


def number(text):
    return int(text.replace(",", ""))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_run_copies_replicates_repairs_compares_restores_and_leaves_nothing_running(tmp_path):
    recording = small_shop(tmp_path / "shop", {"a_loaded", "b_mid"})
    output, summary = finished(
        start(tmp_path / "home", "run", "--recording", str(recording), "--speed", "2")
    )
    assert summary["differences"] == "0"
    came_with_the_copy = number(
        re.search(r"what ([\d,]+) transactions had left", summary["copied"])[1]
    )
    assert came_with_the_copy >= 5_672 // 4
    assert came_with_the_copy + number(summary["transactions"].split()[0]) == 5_672
    assert "100 were missing, 50 different, 10 not in TiDB" in summary["copied again"]
    assert "snapshot b_mid: 4 tables, 10,321 rows compared, 0 differences" in output
    assert re.match(r"4 tables, 10,\d+ rows equal to TiDB", summary["verified"])
    assert re.match(r"1 row of \S+ \(\S+=\d+\), found in .* equal again", summary["spoiled"])
    quality = re.fullmatch(
        r"(\d+) suites, (\d+) of (\d+) expectations met; report (\S+)", summary["quality"]
    )
    assert int(quality[1]) == 5, "four tables and the replication"
    assert int(quality[2]) >= int(quality[3]) - 4, output
    assert "bank.ledger" in Path(quality[4]).read_text()
    gone = re.search(r"all ([\d,]+) rows gone", summary["accident"])[1]
    assert number(gone) > 1_000
    assert re.fullmatch(
        rf"(\S+)_restored\.(\S+): {gone} rows, as .*; \1\.\2: 0 rows", summary["restored"]
    )
    assert tagged(tmp_path / "home") == []


@pytest.mark.slow
@pytest.mark.beyond_ci
@pytest.mark.timeout(600)
def test_a_run_with_a_pump_that_captures_replicates_all_ddl_of_a_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_CAPTURE", "1")
    recording = str(ROOT / "tests" / "recordings" / "ddl")
    words = "run", "--recording", recording, "--no-bootstrap", "--speed", "4"
    output, summary = finished(start(tmp_path / "home", *words))
    assert summary["differences"] == "0", output
    assert re.match(r"6 snapshots, 40 tables, [\d,]+ rows", summary["compared"])
    assert tagged(tmp_path / "home") == []


@pytest.mark.slow
def test_a_run_that_is_told_to_end_stops_everything_it_started(tmp_path):
    child = start(tmp_path / "home", "run")
    try:
        for line in child.stdout:
            if line.startswith("mariadb"):
                break
        assert tagged(tmp_path / "home")
        child.send_signal(signal.SIGTERM)
        assert child.wait(120) == 130
    finally:
        child.kill()
        child.stdout.close()
    assert tagged(tmp_path / "home") == []


@pytest.mark.slow
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
    assert tagged(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "--home", str(tmp_path / "home"), "down"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert tagged(tmp_path / "home") == []
