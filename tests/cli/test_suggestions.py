"""Whatever word is mistyped, the answer names the nearest one, and ends with 2."""

from __future__ import annotations

import click
import pytest

from sluice.cli import group
from sluice.cli._suggestions import Choice, near
from tests.cli.test_json_output import leaves
from tests.cli.typed import typed


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("fnd",), "find"),
        (("bootstrp", "--from", "tidb://"), "bootstrap"),
        (("find", "--kind", "delte"), "delete"),
        (("undo", "--since", "2h", "--kind", "Deletes"), "delete"),
        (("find", "--group", "tables"), "table"),
        (("relay", "shwo"), "show"),
        (("find", "--sinse", "2h"), "--since"),
    ],
)
def test_a_mistyped_word_ends_with_2_and_the_nearest(words: tuple[str, ...], meant: str) -> None:
    done = typed(*words)
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert "did you mean" in last.lower() and meant in last.lower().partition("did you mean")[2]


def test_a_word_like_no_command_names_the_list() -> None:
    done = typed("qqqq")
    assert done.returncode == 2 and "`sluice --help` lists them" in done.stderr


def test_every_option_with_some_words_suggests_one() -> None:
    plain = {
        (name, each.name)
        for name, command in leaves(group, "")
        for each in command.params
        if isinstance(each.type, click.Choice) and not isinstance(each.type, Choice)
    }
    assert plain == set()


def test_what_is_alike_is_named_as_it_is_spelled() -> None:
    assert near("europe/berln", ["Europe/Berlin", "UTC"]) == "; did you mean Europe/Berlin?"
    assert near("xyzzy", ["Europe/Berlin", "UTC"]) == ""
