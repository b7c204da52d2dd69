"""What passes alone is reported and fails nothing.

What fails twice, a dead worker and a broken module fail the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAKY = Path(__file__).with_name("flaky.py")
PASSES = "def test_passes():\n    pass\n"
ONCE = """
import os, pathlib, pytest

def only_the_first_time(name):
    flag = pathlib.Path(__file__).with_name(name)
    was_there = flag.exists()
    flag.touch()
    return not was_there

@pytest.mark.parametrize("text", ["a b::c/d[e]", "ü"])
def test_once(text):
    assert text != "a b::c/d[e]" or not only_the_first_time("once"), "the port was taken"
"""
TWICE = "\ndef test_twice():\n    assert 1 + 1 == 3\n"
WORKER = (
    "\ndef test_of_a_worker_that_dies():\n    if only_the_first_time('dead'):\n       "
    " os._exit(9)\n"
)
TEARDOWN = """
@pytest.fixture
def server():
    yield
    assert not only_the_first_time("server"), "it did not stop"

def test_that_stops_a_server(server):
    pass
"""


def run(
    folder: Path, *modules: str, arguments: tuple[str, ...] = ("-n2",)
) -> tuple[int, list[str]]:
    """Run a suite of these modules; return the exit status and the lines that were printed."""
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -q -p xdist.plugin -p pytest_reportlog.plugin -p no:cacheprovider\n"
    )
    for number, text in enumerate(modules):
        (folder / f"test_{number}.py").write_text(text)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them takes longer than these suites
    done = subprocess.run(
        [sys.executable, str(FLAKY), *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    return done.returncode, done.stdout.splitlines()


def test_what_passes_alone_is_named_with_its_first_failure_in_the_last_lines_and_fails_nothing(
    tmp_path,
):
    status, lines = run(tmp_path, PASSES, ONCE + TEARDOWN, arguments=("-n0",))
    assert status == 0, lines
    last = lines[-9:]
    assert last[-1] == "4 passed, 0 failed, 0 skipped"
    assert "FLAKY test_1.py::test_once[a b::c/d[e]]" in last
    assert "FLAKY test_1.py::test_that_stops_a_server" in last
    shown = "\n".join(last)
    assert "the port was taken" in shown
    assert "it did not stop" in shown


def test_what_fails_twice_fails_the_run_also_beside_what_fails_once(tmp_path):
    status, lines = run(tmp_path, ONCE, TWICE, arguments=("-n0",))
    assert status == 1
    assert [line for line in lines if line.startswith("FLAKY ")] == [
        "FLAKY test_0.py::test_once[a b::c/d[e]]"
    ]
    assert lines[-2:] == ["FAILED TWICE test_1.py::test_twice", "2 passed, 1 failed, 0 skipped"]


@pytest.mark.quick_cases("dead worker")
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (ONCE + WORKER, "crashed while running"),
        ("import no_such_module\n", "no_such_module"),
        (
            (
                "\nimport pytest\n@pytest.mark.parametrize('n', range(21))\ndef test_n(n):\n   "
                " assert 0\n"
            ),
            "more than chance",
        ),
    ],
    ids=["a dead worker", "a module that can't be imported", "too many"],
)
def test_what_no_second_run_of_a_test_can_excuse_fails_the_run(module, reason, tmp_path):
    status, lines = run(tmp_path, PASSES, module)
    assert status != 0
    told = lines[
        next(
            number for number, line in enumerate(lines) if line.startswith("nothing is run again")
        ) :
    ]
    assert reason in "\n".join(told)
    assert not [line for line in lines if line.startswith("FLAKY ")]


def test_of_a_run_that_is_cut_off_with_all_its_processes_what_failed_until_then_is_named(tmp_path):
    cut = "\nimport os, signal\ndef test_cut():\n    os.killpg(0, signal.SIGABRT)\n"
    status, lines = run(tmp_path, PASSES, TWICE + cut, arguments=("-n0",))
    assert status != 0
    assert "until then 1 passed, 1 failed" in lines
    assert "FAILED test_1.py::test_twice" in lines


@pytest.mark.slow
def test_a_process_that_dies_when_it_runs_the_failed_test_alone_fails_the_run(tmp_path):
    dies = (
        "\nimport os\ndef test_dies():\n    assert 'PYTEST_XDIST_WORKER' not in os.environ\n   "
        " os._exit(0)\n"
    )
    status, lines = run(tmp_path, dies)
    assert (status, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")


@pytest.mark.slow
def test_a_suite_without_a_failure_is_run_once_and_ends_with_its_own_summary(tmp_path):
    status, lines = run(tmp_path, PASSES)
    assert status == 0
    assert lines[-1].startswith("1 passed")
