"""Every command that prints has `--json`, and what it prints is one document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sluice.cli import group
from sluice.cli._json_lines import NO_JSON, SCHEMA, add_json, wants_json
from tests.cli.typed import typed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"
CONFIG = """
[upstream]
pd-urls = "http://127.0.0.1:1"
[relay]
url = "file://{0}/relay"
[downstream]
type = "file"
[file]
dir = "{0}/files"
"""


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """All commands that do something, by what is typed."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    ctx = click.Context(command)
    for each in command.list_commands(ctx):
        sub = command.get_command(ctx, each)
        assert sub is not None
        yield from leaves(sub, f"{name} {each}".strip())


def test_every_command_takes_json_but_those_that_the_page_lists() -> None:
    lacking = {
        name.partition(" ")[0]
        for name, command in leaves(group, "")
        if not any("--json" in param.opts for param in command.params)
    }
    assert lacking <= NO_JSON
    listed = PAGE.read_text().partition("These have no `--json`")[2].partition("##")[0]
    assert set(re.findall(r"`([a-z-]+)`", listed)) == NO_JSON
    assert f"This is version {SCHEMA} " in PAGE.read_text()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (path := tmp_path / "sluice.toml").write_text(CONFIG.format(tmp_path))
    return path


def test_an_order_prints_one_object_with_the_lines_that_people_see(config: Path) -> None:
    plain = typed("pause", "apply", "--config", config)
    done = typed("pause", "apply", "--json", "--config", config)
    document = json.loads(done.stdout)
    assert document == {
        "schema": 1,
        "command": "sluice pause",
        "exit_code": 0,
        "lines": plain.stdout.splitlines(),
    }
    assert done.stderr.startswith("pipeline ")


def test_a_command_of_a_group_and_an_error_keep_their_exit_codes(config: Path) -> None:
    done = typed(
        "txn", "skip", "470632514617966599", "--why", "a test", "--json", "--config", config
    )
    assert json.loads(done.stdout)["command"] == "sluice txn skip"
    done = typed("jobs", "pause", "no-such-job", "--json", "--config", config)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_document_that_a_command_prints_itself_is_left_as_it_is() -> None:
    @click.command()
    def job() -> int:
        click.echo('{"state":\n "failed"}' if wants_json() else "it failed")
        return 1

    runner = CliRunner()
    command = add_json(job, "job")
    assert runner.invoke(command).output == "it failed\n"
    done = runner.invoke(command, ["--json"], standalone_mode=False)
    assert json.loads(done.output) == {"state": "failed"}
    assert done.return_value == 1
