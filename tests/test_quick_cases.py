"""Of the cases of a test some stay in `make test`; a mark that chooses none is an error."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.quick_cases import mark_others


class Item:
    """What is asked of a test, and what becomes of it."""

    def __init__(self, nodeid: str, mark: pytest.MarkDecorator | None) -> None:
        self.nodeid = nodeid
        self.added: list[str] = []
        self._mark = mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._mark.mark if self._mark and self._mark.name == name else None

    def add_marker(self, name: str) -> None:
        self.added.append(name)


def quick(
    mark: pytest.MarkDecorator | None, *cases: str, test: str = "a.py::test_a", whole: bool = True
) -> list[str]:
    """Return the cases that stay."""
    items = [Item(f"{test}[{case}]", mark) for case in cases]
    mark_others(cast(Any, items), whole_tests=whole)
    assert all(item.added in ([], ["slow"]) for item in items)
    return [case for case, item in zip(cases, items, strict=True) if not item.added]


def test_cases_are_chosen_by_a_part_of_their_id() -> None:
    cases = ("atomic-1", "parallel-1", "parallel-11", "heap")
    assert quick(pytest.mark.quick_cases("parallel-1"), *cases) == ["parallel-1", "parallel-11"]
    assert quick(pytest.mark.quick_cases("-1]", "[heap"), *cases) == [
        "atomic-1",
        "parallel-1",
        "heap",
    ]


def test_every_third_is_chosen_from_the_first_one_on() -> None:
    assert quick(pytest.mark.quick_cases(every=3), *"abcdefg") == ["a", "d", "g"]


def test_a_test_without_the_mark_keeps_all() -> None:
    assert quick(None, "a", "b") == ["a", "b"]
    assert quick(pytest.mark.timeout(3), "a", "b") == ["a", "b"]


def test_ci_leaves_out_cases_by_a_mark_of_its_own() -> None:
    items = [Item(f"a.py::x[{case}]", pytest.mark.ci_cases("b")) for case in "abc"]
    mark_others(cast(Any, items), whole_tests=True)
    assert [item.added for item in items] == [["beyond_ci"], [], ["beyond_ci"]]


def test_each_test_is_counted_alone() -> None:
    mark = pytest.mark.quick_cases(every=2)
    items = [Item(f"{test}[{case}]", mark) for case in "ab" for test in ("a.py::x", "b.py::x")]
    mark_others(cast(Any, items), whole_tests=True)
    assert [item.added for item in items] == [[], [], ["slow"], ["slow"]]


def test_a_mark_that_chooses_nothing_is_an_error_unless_single_cases_are_run() -> None:
    mark = pytest.mark.quick_cases("renamed")
    with pytest.raises(pytest.UsageError, match=r"no case: quick_cases of a\.py::test_a$"):
        quick(mark, "a", "b")
    assert quick(mark, "a", "b", whole=False) == []
