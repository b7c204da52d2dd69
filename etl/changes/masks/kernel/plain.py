"""The kernel's functions where it isn't compiled: the caller masks value by value."""

# ruff: noqa: PLR0913 - the arguments are those of the compiled functions, which take them by position

from __future__ import annotations

from typing import Any, TypeAlias

Buffer: TypeAlias = Any
"""Whatever has bytes to be looked at."""
Spec: TypeAlias = tuple[int, int, int, int, int, bytes]
"""A mask: the slot of its column, its kind, its argument, the digits of a hash (of SHIFT and
NUMBER: bits of types), the slot of SHIFT's other column, and the key, or the datum of CONSTANT.

The argument is the characters that PARTIAL keeps, the column's length for EMAIL, below 0 for any,
the bits of NUMBER, or SHIFT's most days by the other column, and its days without one (below 0)."""


def values(data: Buffer, offsets: Buffer, padding: int, mask: Spec, /) -> tuple[bytes, bytes]:
    """Return texts, that lie in `data` at `offsets` (int64), masked: bytes and their offsets.

    `padding`: bytes there are behind them at least.
    """
    raise RuntimeError("the kernel of masks isn't compiled")


def rows(
    data: Buffer,
    offsets: Buffer,
    places: Buffer,
    kinds: Buffer,
    old: Buffer,
    new: Buffer,
    slots: int,
    padding: int,
    masks: tuple[Spec, ...],
    /,
) -> tuple[bytes, bytes] | None:
    """Return the rows at `places`, masked, in that order: bytes and their offsets.

    The arguments are those of `sluice.tidb.kernel.walk` and what it returns. None if a datum of a
    masked column isn't as nearly always.
    """
    return None
