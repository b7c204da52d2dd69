"""The kernel's functions for where it can't be compiled."""

# ruff: noqa: PLR0913 - the arguments are those of the compiled function, which takes them by position

from __future__ import annotations

from typing import Any

Spec = tuple[int, int, bytes | None, tuple[bytes, ...] | None, Any, Any]


def lines(
    data: Any, cells: bytes, slots: int, columns: tuple[Spec, ...], places: Any, escapes: bytes, /
) -> tuple[bytes, bytes, bytes] | None:
    """Return a line for each of the images at `places` (int64).

    It is text, the lines' offsets (int64), and for each column a byte that is 1 if its values are
    in hex. None if a value is out of its range, isn't there, or is no text.

    `columns`: of the first slots: how its values are written, digits behind the point, what stands
    for a value that isn't there, an ENUM's names, and of GIVEN ones offsets (int64) and text.
    `escapes`: for each byte the letter that stands for it behind a backslash, or 0.

    Here it is always None.
    """
    return None


def net(
    data: Any, old: bytes, new: bytes, slots: int, key: bytes, kinds: bytes, ends: Any, /
) -> tuple[bytes, bytes, bytes, bytes, bytes] | None:
    """Return the net effect of few changes of each of some alike tables, given in order.

    It is found by the key in some slots (`key`: int64): places (int64) of old images of rows to
    delete, of new images of rows that did not exist before, of old and new ones of rows that
    existed and still exist, each table by table; and three numbers (int64) for each table, how
    many there are of the first three. They are -1, and none of its images is there, if values of
    the key aren't all numbers, or all text, or the changes can't follow one another.

    `ends` (int64): the number of changes up to the end of each table.

    Here it is always None.
    """
    return None
