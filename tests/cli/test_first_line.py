"""Whatever command is about a pipeline, its first line says which one, and what chose it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from sluice.cli import group
from tests.cli.test_json_output import leaves
from tests.cli.test_pipelines_command import CONFIG
from tests.cli.typed import typed

WORDS = {
    "as-of": "20m bank.ledger",
    "config": "--check bank.ledger",
    "ddl replace": "7 --why test --sql 'SELECT 1'",
    "handover": "--to-drainer",
    "jobs forget": "backfill",
    "undo": "--since 20m",
}
"""What a command needs beside the parameters that it requires."""
SEVERAL = {"metrics", "pipelines", "top"}
"""They show all pipelines, each by its name."""


class FirstLineError(Exception):
    """The command has printed its first line, and isn't to do anything."""


def about_a_pipeline() -> dict[str, click.Command]:
    return {
        name: command
        for name, command in leaves(group, "")
        if any("--pipeline" in param.opts for param in command.params) and name not in SEVERAL
    }


def words(name: str, command: click.Command) -> list[str]:
    """The least that is to be typed behind the command's name."""
    if name in WORDS:
        return shlex.split(WORDS[name])
    found: list[str] = []
    for param in command.params:
        if not param.required:
            continue
        if isinstance(param, click.Option):
            found.append(param.opts[0])
        if isinstance(param, click.Argument) or not param.is_flag:
            found.append(_value(param.type))
    return found


def _value(kind: click.ParamType[object]) -> str:
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    is_text = kind is click.STRING or isinstance(kind, click.Path)
    return "x.y" if is_text else "470614793860415502"


@pytest.mark.quick_cases(every=5)
@pytest.mark.parametrize("name", sorted(about_a_pipeline()))
def test_the_first_line_of_each_command_says_which_pipeline(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "pipelines").mkdir()
    file = folder / "shop.toml"
    file.write_text(CONFIG.format(folder=tmp_path, name="shop"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    said: list[tuple[str, bool]] = []

    def echo(message: object = "", *, err: bool = False, **_: object) -> None:
        said.append((str(message), err))
        if len(said) == 1:
            raise FirstLineError

    with monkeypatch.context() as patched:
        patched.setattr(click, "echo", echo)
        typed(*name.split(), *words(name, about_a_pipeline()[name]))
    assert said, "it has printed nothing"
    line, is_error_stream = said[0]
    assert is_error_stream, "standard output has results alone"
    assert line.endswith(f"({file}, the only one in $SLUICE_PIPELINES)") or (
        name == "upgrade" and f"of {file} (the only one in $SLUICE_PIPELINES)" in line
    )
    assert name == "upgrade" or line.startswith("pipeline shop (sluice-")
