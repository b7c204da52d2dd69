"""The kernel's function for where it can't be compiled."""

# ruff: noqa: PLR0913 - the arguments are those of the compiled function, which takes them by position

from __future__ import annotations

from typing import Any

Spec = tuple[int, int, bytes | None, tuple[bytes, ...] | None, Any, Any]


def lines(
    data: Any, cells: bytes, slots: int, columns: tuple[Spec, ...], places: Any, escapes: bytes, /
) -> tuple[bytes, bytes, bytes] | None:
    """A line for each of the images at `places` (int64): text, the lines' offsets (int64), and for each column a byte
    that says whether its values are in hex. None if a value is out of its range, isn't there, or is no text.

    `columns`: of the first slots: how its values are written, digits behind the point, what stands for a value that
    isn't there, an ENUM's names, and of GIVEN ones offsets (int64) and text. `escapes`: for each byte the letter that
    stands for it behind a backslash, or 0.

    Here it is always None.
    """
    return None
