"""Mark the cases of a parametrised test that `make test` or `.ci/run` leaves out.

A mark at the test chooses those that stay, among all cases that its parameters and those of its
fixtures make:

    @pytest.mark.quick_cases("parallel")  # whose id, with its brackets, holds one of these texts
    @pytest.mark.quick_cases(every=3)  # the first, the fourth, the seventh, …
    @pytest.mark.ci_cases("types-avro")  # the same for `.ci/run`

The others are marked `slow`, or `beyond_ci`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

CHOICES = {"quick_cases": "slow", "ci_cases": "beyond_ci"}
"""By the mark that chooses cases: the mark of the others."""


def mark_others(items: Iterable[pytest.Item], *, whole_tests: bool) -> None:
    """Mark the cases that aren't chosen.

    `whole_tests`: all cases of each test are among the items. Raises pytest.UsageError if a mark
    chooses none of them then, as after a case was renamed.
    """
    cases: Counter[tuple[str, str]] = Counter()
    chosen: Counter[tuple[str, str]] = Counter()
    for item in items:
        for choice, others in CHOICES.items():
            mark = item.get_closest_marker(choice)
            if mark is None:
                continue
            test, bracket, case = item.nodeid.partition("[")
            number, cases[choice, test] = cases[choice, test], cases[choice, test] + 1
            every: int = mark.kwargs.get("every", 0)
            if number % every == 0 if every else any(text in bracket + case for text in mark.args):
                chosen[choice, test] += 1
            else:
                item.add_marker(others)
    if whole_tests and (empty := sorted(cases.keys() - chosen.keys())):
        names = ", ".join(f"{choice} of {test}" for choice, test in empty)
        raise pytest.UsageError(f"a mark chooses no case: {names}")
