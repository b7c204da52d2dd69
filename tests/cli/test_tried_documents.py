"""What the documents give to type is typed as it stands there: the tutorial and three pages line by
line, single commands of others.
"""

import contextlib
import json
import re
import shlex
import subprocess
import time
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from sluice.cli import group
from sluice.devstack.compare import compare
from sluice.devstack.launch import connect
from sluice.devstack.processes import tagged
from sluice.devstack.stack import Stack
from tests.bad_night import Terminal
from tests.cli.documented import ON_THE_STACK
from tests.cli.typed import ROOT, started, typed

PAGES = ("start-a-replica.md", "copy-tables-again.md", "restore-tables.md")
PROCESSES = ("sluice up", "sluice bootstrap --from tidb://")
"""The lines that are typed into a process of their own: one that leaves processes behind, and a
job.
"""
SNAPSHOT = ROOT / "tests" / "recordings" / "bootstrap" / "snapshots" / "z_end"
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class Shown(NamedTuple):
    """A line that was typed, and what came of it."""

    line: str
    code: int
    output: str


class Tried:
    """A one-machine stack on which the pages' lines were typed."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.shown = [self.type(line) for line in given()]

    def type(self, line: str) -> Shown:
        program, *words = shlex.split(line)
        if program == "sluice":
            how = started if line in PROCESSES else typed
            done = how(*words, env={"SLUICE_HOME": str(self.stack.home)})
        else:
            assert program == "mariadb", line
            words = [re.sub(r"=\.sluice/", f"={self.stack.home}/", word) for word in words]
            done = subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True)
        return Shown(line, done.returncode, done.stdout + done.stderr)


def given() -> list[str]:
    """The lines after a prompt, in their order."""
    texts = [(ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8") for page in PAGES]
    return [line for text in texts for line in re.findall(r"^    \$ (.*)$", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    stack = Stack(tmp_path_factory.mktemp("tried") / "home")
    try:
        yield Tried(stack)
    finally:
        stack.down()
    assert tagged(stack.home) == []


@pytest.mark.beyond_ci
@pytest.mark.timeout(900)
def test_bootstrapping_repairing_and_restoring_a_table_work_as_the_documents_say(
    tried,
):
    assert {shown.line for shown in tried.shown} >= {*PROCESSES}
    assert (
        tried.shown[0].line == "sluice up"
        and sum("--mode compare" in shown.line for shown in tried.shown) == 2
    )
    codes = iter((1, 0))  # before the table is copied again, and after
    for shown in tried.shown:
        expected = next(codes) if "--mode compare" in shown.line else 0
        assert shown.code == expected, shown
        assert expected == 0 or "100 missing" in shown.output, shown
    # of the restored table; a client may warn
    assert tried.shown[-1].output.split()[:2] == ["COUNT(*)", "500"], shown
    with connect(tried.stack.site()) as database:
        assert compare(SNAPSHOT, database).differences == []


def there(line: str) -> list[str]:
    """The words behind `sluice` with what is on the stack in place of the document's names and
    keys.
    """
    for documented, own in (
        ("shop.orders", "bank.child"), ("'shop.*'", "'bank.*'"), ("crm.customer", "bank.parts"),
        ("1000000", "1"), ("2000000", "100"), ("created_at >= '2026-11-16'", "id > 3"),
    ):  # fmt: skip
        line = line.replace(documented, own)
    return shlex.split(line)[1:]


@pytest.mark.timeout(900)
def test_single_commands_of_the_documents_do_their_work_on_a_running_stack(tried, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tried.stack.home))
    for line in ON_THE_STACK:
        done = CliRunner().invoke(group, there(line))
        assert done.exit_code == 0, (line, done.output, done.exception)


@pytest.mark.timeout(300)
def test_all_that_these_commands_wrote_is_known_to_the_check_of_an_upgrade(tried, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tried.stack.home))
    done = CliRunner().invoke(group, ["upgrade", "--check", "--all", "--json"])
    document = json.loads(done.stdout)
    assert (done.exit_code, document["failed"]) == (0, 0), done.output
    assert [each for each in document["results"] if each["state"] != "ok"] == []
    kinds = {each["kind"] for each in document["kinds"]}
    assert {"window records", "jobs' states", "jobs' requests", "verifications"} <= kinds
    assert {"days of the catalogue", "snapshots"} <= kinds


TUTORIAL = ROOT / "docs" / "tutorial" / "getting-started.md"
PORTS = {
    "21001": "cluster",
    "21002": "cluster-sql",
    "21003": "cluster-control",
    "21004": "mariadb",
    "21005": "spark",
}
"""The tutorial's ports, and whose they are."""
COMMIT_TS = "470700000000000001"
"""That of the tutorial's accident."""
FAILS = ("sluice init", "sluice find --table bank.chidl")
"""Their exit code is 1, as the text says."""


def steps() -> list[tuple[str, list[tuple[str, str]]]]:
    """The tutorial's lines, each with the questions and what is answered."""
    text = re.sub(r" *\\\n +", " ", TUTORIAL.read_text(encoding="utf-8"))
    blocks = re.findall(r"^    \$ (.*)\n((?:    (?!\$ ).*\n)*)", text, re.MULTILINE)
    return [
        (line, re.findall(r"^    (\S.*): (\S+)$", said, re.MULTILINE) if "init" in line else [])
        for line, said in blocks
    ]


@pytest.fixture
def beginner(tmp_path_factory, monkeypatch):
    """A folder with the recordings, and a terminal there; the stack's folder is the clone's."""
    folder = tmp_path_factory.mktemp("beginner")
    (folder / "tests").symlink_to(ROOT / "tests")
    stack = Stack(folder / ".sluice")
    monkeypatch.setenv("SLUICE_HOME", str(stack.home))
    for name in ("SLUICE_CONFIG", "SLUICE_PIPELINES"):
        monkeypatch.delenv(name, raising=False)
    try:
        with contextlib.closing(Terminal(cwd=folder)) as terminal:
            yield terminal, stack
    finally:
        stack.down()


@pytest.mark.timeout(900)
def test_the_tutorial_leads_from_an_empty_folder_to_an_accident_taken_back(beginner):
    terminal, stack = beginner
    said, commit_ts = {}, COMMIT_TS
    for line, answers in steps():
        own = {COMMIT_TS: commit_ts}
        if "cluster" in line or stack.running():
            ports = stack.state().ports
            own |= {port: str(ports[name]) for port, name in PORTS.items() if name in ports}
        pattern = re.compile("|".join(own))
        words, *typed_in = (
            pattern.sub(lambda found, own=own: own[found[0]], text)
            for text in (line, *(each for pair in answers for each in pair))
        )
        pairs = list(zip(typed_in[::2], typed_in[1::2], strict=True))
        output, code = terminal.type(words, *pairs)
        said[line] = output
        assert code == int(line.startswith(FAILS)), (words, output)
        if "DELETE FROM" in line:
            wait_for_rows(0, stack)
        elif line.startswith("sluice find --table 'bank.*'"):
            commit_ts = re.search(r"^(\d{18})  .*500 rows", output, re.MULTILINE)[1]
        elif line.endswith("--apply"):
            wait_for_rows(500, stack)
    shown = "\n".join(said.values())
    assert "GRANT SELECT" in shown and "next: repair what failed, then" in shown
    assert "next: `sluice replicate`; `sluice status` shows the lag" in shown
    assert "did you mean bank.child?" in shown
    assert "500 rows looked at in the replica" in shown and "no conflicts" in shown
    assert "500 rows are what they were, in one transaction" in shown
    assert stack.running() == []


def wait_for_rows(count, stack):
    """Wait until the replica's table has so many rows."""
    deadline = time.monotonic() + 120
    while True:
        with (
            contextlib.closing(connect(stack.site())) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT COUNT(*) FROM bank.child")
            found = cursor.fetchone()[0]
        if found == count:
            return
        assert time.monotonic() < deadline, (found, (stack.home / "replicate.log").read_text())
        time.sleep(0.5)
