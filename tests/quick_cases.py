"""Mark the cases of a parametrised test that `make test` leaves out.

A mark at the test chooses those that stay, among all cases that its parameters and those of its
fixtures make:

    @pytest.mark.quick_cases("parallel")  # whose id, with its brackets, holds one of these texts
    @pytest.mark.quick_cases(every=3)  # the first, the fourth, the seventh, …

The others are marked `slow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def mark_others_slow(items: Iterable[pytest.Item], *, whole_tests: bool) -> None:
    """Mark the cases that aren't chosen.

    `whole_tests`: all cases of each test are among the items. Raises pytest.UsageError if a mark
    chooses none of them then, as after a case was renamed.
    """
    cases: Counter[str] = Counter()
    chosen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("quick_cases")
        if mark is None:
            continue
        test, bracket, case = item.nodeid.partition("[")
        number, cases[test] = cases[test], cases[test] + 1
        every: int = mark.kwargs.get("every", 0)
        if number % every == 0 if every else any(text in bracket + case for text in mark.args):
            chosen[test] += 1
        else:
            item.add_marker(pytest.mark.slow)
    if whole_tests and (empty := sorted(cases.keys() - chosen.keys())):
        raise pytest.UsageError(f"the mark quick_cases chooses no case of {', '.join(empty)}")
