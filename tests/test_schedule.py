"""Files that share something expensive go to one worker and begin first, and so do those that take
long.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.schedule import LONG, ROOT, SHARED, LongestFirst, in_order, shared_by

FILES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]


def test_what_is_listed_is_there_and_shares_nothing() -> None:
    assert [file for file in LONG if not (ROOT / file).is_file() or shared_by(file)] == []


def test_each_thing_that_is_shared_has_files_that_need_it() -> None:
    assert {shared_by(file) for file in FILES} == {*SHARED, ""}
    assert shared_by("tests/cli/test_run.py") == "the stack"
    assert shared_by("tests/etl/copy/backfill/test_running.py") == "Spark"


def test_what_is_shared_comes_first_then_what_is_long_then_what_has_many_tests() -> None:
    short = [file for file in FILES if not shared_by(file) and file not in LONG][:2]
    given = [
        short[0],
        *[short[1]] * 2,
        *reversed(LONG),
        "tests/etl/copy/backfill/test_running.py",
        "tests/cli/test_run.py",
    ]
    assert list(in_order(given)) == [
        "tests/cli/test_run.py",
        "tests/etl/copy/backfill/test_running.py",
        *LONG,
        short[1],
        short[0],
    ]


def test_a_file_is_done_by_one_worker_and_all_that_share_something_too() -> None:
    scope = LongestFirst.__new__(LongestFirst)._split_scope
    assert scope(f"{LONG[0]}::test_a[x]") == LONG[0]
    assert (
        scope("tests/cli/test_run.py::test_a")
        == scope("tests/test_wheel.py::test_b")
        == "the stack"
    )


def test_no_two_test_files_have_one_name_which_pytest_would_take_for_one_module() -> None:
    names = Counter(Path(file).name for file in FILES)
    assert [name for name, count in names.items() if count > 1] == []
