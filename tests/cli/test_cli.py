"""The command line: readable help, one clear line an error, and answers with the stack down."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from sluice.bench.pages import write_archive
from sluice.etl.history.retain.summaries import refresh_summaries
from sluice.relay import RelayLog, WindowRecord
from sluice.relay.archive import Archive
from sluice.tidb import tso
from tests.cli.typed import started, typed

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "tests" / "recordings" / "shop"


@pytest.fixture
def env(tmp_path):
    return {"SLUICE_HOME": str(tmp_path / "home")}


@pytest.fixture
def sluice(env, tmp_path):
    return partial(typed, env=env, cwd=tmp_path)


def test_help_lists_every_command(sluice, env, tmp_path):
    done = started("--help", env=env, cwd=tmp_path)
    assert done.returncode == 0
    for command in ("run", "up", "down", "status", "replay"):
        assert f"  {command} " in done.stdout
        assert sluice(command, "--help").returncode == 0
    assert "  pump " in done.stdout
    assert started("pump", "--help", env=env, cwd=tmp_path).returncode == 0


def test_status_works_without_a_stack(sluice):
    done = sluice("status")
    assert done.returncode == 0
    assert "nothing runs" in done.stdout
    status = json.loads(sluice("status", "--json").stdout)
    assert status["running"] is False
    assert {part["state"] for part in status["parts"].values()} == {"stopped"}
    assert status["replication"] is None


NOT_FOR_STATUS = {
    *("fastapi", "numpy", "pandas", "psutil", "pyarrow", "pyspark"),
    *("sluice.devstack.launch", "sluice.devstack.state", "sluice.etl.copy"),
    *("sluice.etl.changes.messages.message", "sluice.etl.changes.planning"),
    *("sluice.etl.changes.write_plans", "sluice.etl.downstream.ddl", "sluice.tidb.conversion"),
}
"""What takes a tenth of a second or more to import, or belongs to writing."""


def imported_by(*words, env, cwd):
    """Return the modules that a command has imported when it ends."""
    ended = "import sys, sluice.cli\ntry: sluice.cli.main()\nfinally: print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", ended, *words],
        env=os.environ | env | {"PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_status_imports_only_what_it_shows(env, tmp_path):
    of_stopped_stack = imported_by("status", env=env, cwd=tmp_path)
    assert "sluice.devstack.stack" in of_stopped_stack
    assert not {"pyarrow", "numpy", "sluice.relay"} & of_stopped_stack
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    hi = tso.compose(1_790_000_000_000)
    relay = RelayLog.open(f"file://{tmp_path}/relay")
    relay.commit(WindowRecord(0, hi, 7, "t", 1, 0, 0, 1))
    archive = Archive.open(f"file://{tmp_path}/relay/archive")
    write_archive(archive, end=hi, hours=5, tables=2)
    refresh_summaries(relay, archive)
    of_pipeline = imported_by("status", "--config", str(config), env=env, cwd=tmp_path)
    asked = {"sluice.etl.operate.status", "sluice.tidb.etcd", "sluice.etl.downstream.mysql"}
    assert asked <= of_pipeline
    assert not NOT_FOR_STATUS & of_pipeline
    own = {name for name in of_pipeline if name.startswith("sluice")}
    assert len(own) <= 230, sorted(own)  # twice as many with what plans and writes


@pytest.mark.slow
def test_doctor_loads_neither_pyspark_nor_pandas_which_take_two_seconds(env, tmp_path):
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    of_doctor = imported_by("doctor", "--config", str(config), env=env, cwd=tmp_path)
    assert "sluice.etl.operate.doctor" in of_doctor
    assert not {"pandas", "pyspark"} & of_doctor


def test_help_of_the_demo_waits_for_no_spark(env, tmp_path):
    imported = imported_by("run", "--help", env=env, cwd=tmp_path)
    assert "sluice.cli.run" in imported
    assert not {"grpc", "numpy", "pyarrow", "pyspark"} & imported


def test_down_without_a_stack_is_no_error(sluice):
    done = sluice("down")
    assert (done.returncode, done.stdout) == (0, "nothing was running\n")


def one_error_line(done, code=1):
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_replay_without_a_stack_says_what_to_do(sluice):
    assert "sluice up" in one_error_line(sluice("replay", SHOP))


def test_a_recording_with_a_missing_file_is_refused_by_name(sluice, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(SHOP, broken, ignore=shutil.ignore_patterns("tikv-meta*", "pump-data-dir*"))
    line = one_error_line(sluice("replay", broken))
    assert "tikv-meta.jsonl.gz" in line
    assert str(broken) in line


def test_an_unknown_label_is_refused_with_those_there_are(sluice):
    line = one_error_line(sluice("replay", SHOP, "--until", "z_never"))
    assert "z_never" in line
    assert "b_mid" in line


@pytest.mark.parametrize("speed", ["0", "-1", "fast"])
def test_a_speed_that_is_none_is_wrong_usage(sluice, speed):
    assert "above 0" in one_error_line(sluice("replay", SHOP, "--speed", speed), code=2)


def test_an_unknown_part_is_an_error_in_one_line(sluice):
    assert "foo" in one_error_line(sluice("up", "foo"))
    assert "Traceback" in sluice("--debug", "up", "foo").stderr


COMPLETED = pytest.mark.parametrize(
    ("words", "expected"), [("sluice resto", "restore"), ("sluice undo --d", "--dry-run")]
)


@COMPLETED
def test_bash_completes_commands_and_options(words: str, expected: str) -> None:
    assert completed('eval "$(sluice completion bash)"', words) == [expected]


def completed(load: str, words: str) -> list[str]:
    """What bash proposes for the last of `words`, once it has loaded the completion."""
    script = (
        f"{load}\n"
        f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}\n"
        '_sluice_completion sluice; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    folder = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@COMPLETED
def test_completion_is_installed_where_each_shell_looks_once(
    words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".zshrc").write_text("autoload compinit")
    for shell in ("bash", "fish", "zsh", "zsh"):
        done = typed("completion", shell, "--install")
        assert done.returncode == 0 and str(tmp_path) in done.stdout
    line = 'eval "$(sluice completion zsh)"'
    assert (tmp_path / ".zshrc").read_text() == f"autoload compinit\n{line}\n"
    assert "complete " in (tmp_path / ".config/fish/completions/sluice.fish").read_text()
    file = tmp_path / ".local/share/bash-completion/completions/sluice"
    assert completed(f"source {file}", words) == [expected]
