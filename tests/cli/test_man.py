"""The manual page has every command and option of `--help`, and man(1) takes it without a word."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from sluice.cli import group
from tests.cli.test_json_output import leaves
from tests.cli.typed import typed


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("man") / "sluice.1"
    path.write_text(typed("man").stdout, encoding="utf-8")
    return path


def shown(page: Path, width: int = 200) -> str:
    """What man shows, without bold and justified blanks."""
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-Kutf8", "-P-c", f"-rLL={width}n", "-rHY=0", str(page)],
        capture_output=True,
        text=True,
        check=True,
    )
    return re.sub(r"\s+", " ", re.sub(r".\x08", "", done.stdout))


def checkers() -> list[list[str]]:
    """Each program on this machine that judges a manual page."""
    known = {
        "man": ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"],
        "mandoc": ["mandoc", "-Tlint", "-W", "warning"],
    }
    return [words for name, words in known.items() if shutil.which(name)]


@pytest.mark.parametrize("words", [(), ("status",), ("jobs",), ("jobs", "show"), ("upgrade",)])
def test_man_has_nothing_to_say_of_the_page(words: tuple[str, ...], tmp_path: Path) -> None:
    if not checkers():
        pytest.skip("neither man nor mandoc is installed")
    path = tmp_path / "page.1"
    path.write_text(typed("man", *words).stdout, encoding="utf-8")
    for checker in checkers():
        done = subprocess.run([*checker, str(path)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), checker[0]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff isn't installed")
def test_every_command_and_option_is_on_the_page_with_its_help(page: Path) -> None:
    text = shown(page)
    for name, command in leaves(group, ""):
        context = click.Context(command, info_name=f"sluice {name}")
        usage = " ".join([f"sluice {name}", *command.collect_usage_pieces(context)])
        at = text.find(usage)
        assert at >= 0, usage
        for param in command.get_params(context):
            if record := param.get_help_record(context):
                option, said = (re.sub(r"[\s`]+", " ", each).strip() for each in record)
                found = text.find(option, at)
                assert found >= 0, (name, option)
                assert text[found:].replace("`", "").find(said[:20]) >= 0 or not said.isascii()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff isn't installed")
def test_exit_codes_are_on_the_page_and_one_command_has_a_page_of_its_own(
    page: Path, tmp_path: Path
) -> None:
    assert re.search(r"EXIT CODES 0 done 1 the request can't be done", shown(page))
    own = tmp_path / "own.1"
    own.write_text(typed("man", "jobs", "show").stdout, encoding="utf-8")
    text = shown(own)
    assert text.startswith("SLUICE-JOBS-SHOW(1)")
    assert "sluice status" not in text
    done = typed("man", "stauts")
    assert done.returncode == 2 and "no command sluice stauts" in done.stderr
