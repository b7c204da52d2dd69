"""How many examples a property is tried with that gives a number of its own."""

from __future__ import annotations

from hypothesis import settings

_QUICK_PART = 8


def examples(number: int) -> int:
    """Return `number`, or an eighth of it in `make test`, whose profile tries few examples.

    Read when a test module is imported: the profile is chosen before.
    """
    if settings.get_current_profile_name() != "quick":
        return number
    return max(2, number // _QUICK_PART)
