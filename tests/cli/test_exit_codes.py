"""What the command ends with, as `sluice --help` and docs/reference/commands.md say."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest

from sluice.relay import Failure, RelayLog
from sluice.relay.window import window_path
from tests.cli.typed import ROOT, started, typed

TS = 470614793860415502


@pytest.fixture
def config(tmp_path):
    (tmp_path / "sluice.toml").write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    return tmp_path / "sluice.toml"


class Sluice(NamedTuple):
    """The command with that pipeline: typed here, or as a process, whose exit code is the system's
    word.
    """

    typed: Callable[..., subprocess.CompletedProcess[str]]
    started: Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sluice(config):
    env = {"SLUICE_HOME": str(config.parent / "home"), "SLUICE_CONFIG": str(config)}
    return Sluice(partial(typed, env=env), partial(started, env=env))


def damage(config):
    path = config.parent / "relay" / window_path(TS)
    path.parent.mkdir(parents=True)
    path.write_text("no record")


def test_0_it_is_done(sluice):
    assert sluice.started("pause").returncode == 0
    assert sluice.typed("overrides", "list").returncode == 0


def test_1_what_was_asked_for_can_not_be_done(sluice):
    done = sluice.started("run-until", "soon")
    (error,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert "'soon'" in error
    assert sluice.typed("overrides", "remove", str(TS)).returncode == 1


def test_1_a_defect_shows_its_stack_trace(sluice, config):
    script = (
        "from sluice.cli import main, pause; pause.command.callback = lambda **_: {}['x'];"
        " main(['pause'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "KeyError" in done.stderr


def test_2_wrong_usage(sluice):
    assert sluice.started("pause", "everything").returncode == 2


@pytest.mark.slow
def test_3_something_that_passes_is_in_the_way(sluice):
    done = sluice.started("takeover")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert sluice.typed("status").returncode == 3, "neither the downstream nor PD answers"


@pytest.mark.slow
def test_4_replication_has_stopped_and_waits_for_somebody(sluice, config):
    relay = RelayLog.open(f"file://{config.parent}/relay")
    relay.failures.note(
        Failure("apply", "a DDL can't be executed", "`sluice ddl skip 7`", TS >> 18)
    )
    done = sluice.started("status")
    assert done.returncode == 4
    assert re.search(
        "STOPPED +apply, at .*: a DDL can't be executed\nhint +`sluice ddl skip 7`", done.stdout
    )
    assert "airflow dags unpause" in sluice.typed("resume").stdout
    relay.failures.clear("apply")
    assert sluice.typed("status").returncode == 3


def test_4_a_damaged_relay_log_names_its_hint(sluice, config):
    damage(config)
    done = sluice.typed("relay", "show")
    assert done.returncode == 4, done.stderr
    assert window_path(TS) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_codes_are_in_the_help_and_in_the_manual(sluice):
    told = re.findall(r"^ +(\d+) {2,}(\w.*)$", sluice.typed("--help").stdout, re.MULTILINE)
    assert [int(code) for code, _ in told] == [0, 1, 2, 3, 4, 130]
    manual = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for code, _ in told:
        assert re.search(rf"^\| {code} \|", manual, re.MULTILINE), code
