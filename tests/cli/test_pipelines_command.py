"""Commands say which of several pipelines they are about, and `sluice pipelines` lists them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.etl.settings.pipelines import pipelines
from sluice.relay import Failure
from tests.cli.typed import typed

CONFIG = """
[upstream]
pd-urls = "http://127.0.0.1:1"
[relay]
url = "file://{folder}/relay"
[downstream]
type = "file"
[file]
dir = "{folder}/{name}"
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (made := tmp_path / "pipelines").mkdir()
    for name in ("shop", "search"):
        (made / f"{name}.toml").write_text(CONFIG.format(folder=tmp_path, name=name))
    monkeypatch.setenv("SLUICE_PIPELINES", str(made))
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return made


@pytest.fixture
def sluice(folder: Path) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        done = typed(*words)
        return done.returncode, done.stdout, done.stderr

    return run


def test_an_order_goes_to_the_pipeline_that_is_named(sluice: Run) -> None:
    code, _, said = sluice("pause", "apply", "--pipeline", "search")
    assert code == 0 and "pipeline search" in said
    paused = {
        name: one.settings.open_relay().control().apply_paused for name, one in pipelines().items()
    }
    assert paused == {"search": True, "shop": False}


@pytest.mark.parametrize("command", [("pause",), ("status",), ("overrides", "list")])
def test_of_several_one_is_to_be_named(sluice: Run, command: tuple[str, ...]) -> None:
    code, _, said = sluice(*command)
    assert code == 2 and "which pipeline?" in said and "search" in said and "shop" in said


def test_a_wrong_name_is_answered_with_the_right_ones_and_two_ways_to_name_one_are_one_too_many(
    sluice: Run, folder: Path
) -> None:
    code, _, said = sluice("status", "--pipeline", "shp")
    assert code == 1 and "no pipeline 'shp'" in said and "search, shop" in said
    assert sluice("status", "--pipeline", "shop", "--config", str(folder / "shop.toml"))[0] == 2


def test_the_only_one_needs_no_name(sluice: Run, folder: Path) -> None:
    (folder / "search.toml").unlink()
    assert sluice("overrides", "list")[0] == 0


@pytest.mark.quick_cases("command3", "command4")
@pytest.mark.parametrize(
    "command",
    [("status",), ("status", "--json"), ("overrides", "list", "--json"), ("jobs",), ("pause",)],
)
def test_the_first_line_of_every_answer_says_which_pipeline(
    sluice: Run, folder: Path, command: tuple[str, ...]
) -> None:
    _, result, said = sluice(*command, "--pipeline", "shop")
    first, *more = said.splitlines()
    assert first.startswith("pipeline shop (sluice-") and "http://127.0.0.1:1" in first
    assert first.endswith(f"({folder / 'shop.toml'}, from --pipeline)")
    assert "pipeline shop (" not in "\n".join([result, *more])


def test_a_variable_goes_before_files_that_only_lie_there_and_a_flag_before_both(
    sluice: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "search.toml").unlink()
    (home := tmp_path / "home").mkdir()
    text = CONFIG.format(folder=tmp_path, name="other")
    (home / "sluice.toml").write_text(text)
    (here := tmp_path / "here").mkdir()
    (here / "sluice.toml").write_text(text)

    def first(*words: str, cwd: Path = here) -> str:
        said = typed(*words, cwd=cwd).stderr.splitlines()
        return said[0] if said else ""

    for command in ("pause", "jobs"):  # a command that writes asks no more than one that reads
        assert first(command).endswith("shop.toml, the only one in $SLUICE_PIPELINES)")
        named = str(here / "sluice.toml")
        assert first(command, "--config", named).endswith(f"({named}, from --config)")
    monkeypatch.setenv("SLUICE_CONFIG", str(here / "sluice.toml"))
    assert first("jobs").endswith("from $SLUICE_CONFIG)")
    monkeypatch.delenv("SLUICE_CONFIG")
    monkeypatch.delenv("SLUICE_PIPELINES")
    assert first("jobs").endswith("from $SLUICE_HOME)")
    monkeypatch.delenv("SLUICE_HOME")
    monkeypatch.setattr("sluice.devstack.repository.default_home", lambda: home)
    asked = typed("jobs", cwd=here)
    assert asked.returncode == 2 and "which pipeline?" in asked.stderr
    assert f"--config {home / 'sluice.toml'}   (the one-machine stack)" in asked.stderr
    assert f"--config {here / 'sluice.toml'}   (this folder)" in asked.stderr
    (home / "sluice.toml").unlink()
    assert first("jobs").endswith(", this folder)")


@pytest.mark.slow
def test_pipelines_are_listed_with_state_and_what_is_wrong_with_a_file(
    sluice: Run, folder: Path
) -> None:
    sluice("pause", "--pipeline", "search")
    code, said, _ = sluice("pipelines")
    assert (
        code == 0 and "search: paused: land, apply" in said and "shop: nothing applied yet" in said
    )
    pipelines()["shop"].settings.open_relay().failures.note(
        Failure("apply", "a row is missing", "bring it", 1)
    )
    (folder / "my shop.toml").write_text("")
    code, said, _ = sluice("pipelines", "--json")
    told = json.loads(said)
    assert code == 4 and [one["state"] for one in told["pipelines"]] == [
        "paused: land, apply",
        "stopped: apply",
    ]
    assert [one["dag"] for one in told["pipelines"]] == [
        "sluice_replicate_search",
        "sluice_replicate_shop",
    ]
    (problem,) = told["problems"]
    assert "my shop.toml" in problem


def test_resume_names_every_dag_of_the_pipeline_that_has_paused(sluice: Run) -> None:
    relay = pipelines()["shop"].settings.open_relay()
    for what in ("apply", "compact"):
        relay.failures.note(Failure(what, "no", "yes", 1))
    said = sluice("resume", "--pipeline", "shop")[1]
    assert (
        "airflow dags unpause sluice_replicate_shop" in said
        and "airflow dags unpause sluice_archive_shop" in said
    )
    assert "unpause" not in sluice("resume", "--pipeline", "search")[1]
