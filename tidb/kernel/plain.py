"""The kernel's functions where it isn't compiled: nothing is found.

So none of the others is ever called.
"""

# ruff: noqa: PLR0913 - the arguments are those of the compiled functions, which take them by position

from __future__ import annotations

from typing import Any, Never, TypeAlias

Buffer: TypeAlias = Any
"""Whatever has bytes to be looked at."""


def walk(
    data: Buffer,
    offsets: Buffer,
    places: Buffer,
    kinds: Buffer,
    slots: int,
    handle: Buffer,
    of_inserts: Buffer,
    of_others: Buffer,
    /,
) -> tuple[bytes, bytes, bool] | None:
    """Return the cells of the old and of the new images, and whether old ones lack values.

    The rows are those at `places` (int64) among those that lie in `data` at `offsets` (int64);
    `kinds` (int8): 0 insert, 1 update, 2 delete, for each. None if a row isn't written as nearly
    all are.

    A shape has an entry for each datum (see `sluice.tidb.native_images`), in the order in which
    TiDB writes them: those of an insert's `handle`, then the pairs.

    Here it is always None.
    """
    return None


def gather(
    data: Buffer, cells: Buffer, slots: int, slot: int, places: Buffer, padding: int, /
) -> tuple[bytes, bytes]:
    """Return a column's values at `places`, joined and padded, and their offsets (int64)."""
    return _unasked()


def alike(
    data: Buffer, old: Buffer, new: Buffer, codes: bytes, of_old: Buffer, of_new: Buffer, /
) -> bytes:
    """Return DIFFERENT, SAME or UNSURE for each pair of an old image and a new one.

    `codes`: how each column is compared.
    """
    return _unasked()


def _unasked() -> Never:
    raise RuntimeError("nothing was found, so there are no cells")
