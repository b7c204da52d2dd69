"""Each command in the documents is run by a test, or a list says why it can't be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.documented import BY_A_TEST, BY_ITS_FUNCTION, IN_NO_TEST, ON_THE_STACK, typed

ROOT = Path(__file__).resolve().parents[2]
LISTED = (*BY_A_TEST, *BY_ITS_FUNCTION, *IN_NO_TEST)


def where(command: str) -> str:
    """The pattern or line that a command is listed with; "" if it isn't."""
    if command in ON_THE_STACK:
        return command
    return next((pattern for pattern in LISTED if re.fullmatch(pattern, command)), "")


def test_each_command_of_the_documents_has_its_place() -> None:
    commands = typed()
    assert len(commands) > 120
    assert {command: pages for command, pages in commands.items() if not where(command)} == {}


def test_nothing_is_listed_that_no_document_gives() -> None:
    commands = typed()
    assert set(ON_THE_STACK) <= commands.keys()
    used = {where(command) for command in commands}
    assert {pattern for pattern in LISTED if pattern not in used} == set()


@pytest.mark.parametrize("module", sorted({*BY_A_TEST.values(), *BY_ITS_FUNCTION.values()}))
def test_the_module_that_runs_a_command_is_there_and_says_its_words_and_options(
    module: str,
) -> None:
    source = (ROOT / module).read_text(encoding="utf-8")
    # that one reads the pages
    for command in typed() if module != "tests/cli/test_tried_documents.py" else ():
        if command.startswith("sluice ") and BY_A_TEST.get(where(command)) == module:
            words = [word for word in command.split() if re.fullmatch(r"--[a-z][a-z-]*", word)]
            missing = [word for word in words if word not in source]
            assert not missing, f"{command}: {module} doesn't use {missing}"
