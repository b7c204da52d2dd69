"""What the documents give to try on one machine is typed as it stands there, one page after the other."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.compare import compare
from embedded.launch import connect
from embedded.processes import marked
from embedded.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("start-a-replica.md", "copy-tables-again.md", "restore-tables.md")
SNAPSHOT = ROOT / "tests" / "recordings" / "bootstrap" / "snapshots" / "z_end"

pytestmark = pytest.mark.e2e


def typed():
    """The lines after a prompt, in their order."""
    texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES]
    return [line for text in texts for line in re.findall(r"^    \$ (.*)$", text, re.MULTILINE)]


@pytest.mark.timeout(900)
def test_an_empty_database_becomes_a_replica_a_damaged_table_whole_and_a_past_one_is_restored_as_the_documents_say(
    tmp_path,
):
    stack = Stack(tmp_path / "home")
    env = os.environ | {"SLUICE_HOME": str(stack.home), "PYTHONPATH": str(ROOT)}

    def run(line):
        words = shlex.split(line)
        if words[0] == "sluice":
            words[:1] = [sys.executable, "-m", "cli"]
        if words[0] == "mariadb":
            words = [re.sub(r"^-P\d+$", f"-P{stack.site().ports['mariadb']}", word) for word in words]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)
        return line, done.returncode, done.stdout + done.stderr

    lines = typed()
    assert lines[0] == "sluice up" and sum("--mode compare" in line for line in lines) == 2
    codes = iter((1, 0))  # before the table is copied again, and after
    try:
        for line in lines:
            shown = run(line)
            expected = next(codes) if "--mode compare" in line else 0
            assert shown[1] == expected, shown
            assert expected == 0 or "100 missing" in shown[2], shown
        assert shown[2].split() == ["COUNT(*)", "500"], shown  # of the restored table
        with connect(stack.site().ports["mariadb"]) as database:
            assert compare(SNAPSHOT, database).differences == []
    finally:
        stack.down()
    assert marked(stack.home) == []
