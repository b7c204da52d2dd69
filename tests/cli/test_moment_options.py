"""Every option and argument that takes a moment has one type, and a typo is answered by name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sluice.cli import group
from sluice.cli._moments import MOMENT, MomentType, empty_range
from sluice.tidb import tso
from tests.cli.test_json_output import leaves
from tests.cli.typed import typed
from tests.tidb.wire_cluster import Cluster

DAYS = 9

NAMES = {"--since", "--until", "--at", "--as-of", "moment", "ts", "first"}
TAKEN = {
    ("find", "--since"), ("find", "--until"),
    ("undo", "--since"), ("undo", "--until"),
    ("as-of", "first"),
    ("restore", "--until"), ("drill", "--at"),
    ("reapply", "--since"), ("reapply", "--until"),
    ("quality run", "--as-of"),
    ("run-until", "moment"),
    ("relay show", "ts"),
    ("archive run", "--until"),
    ("archive check", "--since"), ("archive check", "--until"),
    ("archive files", "--since"), ("archive files", "--until"),
}  # fmt: skip
OTHERS = {("replay", "--until")}
"""A recording's label, or a TSO in it: it lies in the past of another clock."""


def params() -> dict[tuple[str, str], click.Parameter]:
    return {
        (name, each.opts[0]): each for name, command in leaves(group, "") for each in command.params
    }


def test_whatever_takes_a_moment_has_the_one_type() -> None:
    named = {key for key in params() if key[1] in NAMES} - OTHERS
    typed_so = {key for key, each in params().items() if isinstance(each.type, MomentType)}
    assert named == typed_so == TAKEN


def test_nothing_else_says_in_its_help_that_it_takes_a_time() -> None:
    for key, each in params().items():
        text = f"{each.human_readable_name} {each.metavar or ''} {getattr(each, 'help', '')}"
        says = any(word in text for word in ("TIME", "date-time", "time ago"))
        assert not says or key in TAKEN, key


def test_each_such_command_knows_the_pipeline_whose_clock_counts() -> None:
    has_pipeline = {name for name, option in params() if option == "--pipeline"}
    assert {name for name, _ in TAKEN} <= has_pipeline


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[tuple[Path, Cluster]]:
    """The settings of a pipeline whose upstream is days behind this machine."""
    cluster = Cluster()
    cluster.physical = int(time.time() * 1000) - DAYS * 86_400_000
    (file := tmp_path / "sluice.toml").write_text(
        f'[upstream]\npd-urls = "{cluster.urls[0]}"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "nowhere"\n'
    )
    yield file, cluster
    cluster.stop()


def test_a_time_ago_counts_from_the_upstreams_now_and_the_answer_says_so(
    behind: tuple[Path, Cluster], tmp_path: Path
) -> None:
    file, cluster = behind
    done = typed("run-until", "2h", "--config", file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[1].startswith("times ago count from the upstream's now, ")
    assert f"its clock is {DAYS} d 0 h behind this machine's" in done.stderr
    found = re.search(r"\d{18}", done.stdout)
    assert found is not None
    meant = cluster.physical - 2 * 3_600_000
    assert abs(tso.physical_ms(int(found[0])) - meant) < 60_000


def test_a_moment_that_depends_on_no_clock_asks_none(
    behind: tuple[Path, Cluster], tmp_path: Path
) -> None:
    done = typed("run-until", "470614793860415502", "--config", behind[0], cwd=tmp_path)
    assert done.returncode == 0 and "times ago" not in done.stderr


def test_a_range_after_everything_landed_names_no_option_that_was_not_typed() -> None:
    since, last = 470614793860415502, 470614793860415400
    assert "--until" not in empty_range(since, None, last).message
    assert "--since" in empty_range(since, None, last).message
    assert "not before --until" in empty_range(since, since - 1, last).message


@pytest.mark.parametrize(
    ("said", "ts"),
    [("470614793860415502", 470614793860415502), ("before:470614793860415502", 470614793860415501)],
)
def test_it_is_a_tso_or_the_moment_before_one(said: str, ts: int) -> None:
    assert MOMENT.convert(said, None, None) == ts


@pytest.mark.parametrize("said", ["20m", "yesterday 14:00 Europe/Berlin", "2026-11-21 09:30"])
def test_or_a_time_in_any_of_its_forms(said: str) -> None:
    assert tso.physical_ms(MOMENT.convert(said, None, None)) > 0


WORDS = {
    "as-of": ["yesterdy", "bank.ledger"],
    "run-until": ["yesterdy"],
    "relay show": ["yesterdy"],
    "archive files": ["bank.ledger"],
}


@pytest.mark.quick_cases(every=5)
@pytest.mark.parametrize("key", sorted(TAKEN))
def test_a_typo_ends_with_1_before_anything_is_read(key: tuple[str, str], tmp_path: Path) -> None:
    name, option = key
    words = [*name.split(), *WORDS.get(name, [])]
    words += [option, "yesterdy"] if option.startswith("--") else []
    done = typed(*words, "--json", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert "invalid moment 'yesterdy'" in done.stderr
