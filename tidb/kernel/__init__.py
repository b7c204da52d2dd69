"""Find the values of many rows in one call: compiled from `compiled.c` where that is possible.

Without it nothing is found, and rows are decoded by `sluice.tidb.rows`, which gives the same values
(tests/etl/changes/write_plans/test_found_images.py). `sluice.tidb.build_native` compiles it;
`SLUICE_KERNEL=plain` leaves it out.
"""

from __future__ import annotations

from sluice.tidb.native import is_usable

EDITION = 2
"""The edition of `compiled.c`: code that was compiled from another one isn't used."""

UNLOOKED, NUMBER, MOMENT, BYTES = range(4)
"""Comparisons of a column's values: none, as numbers, as packed times, as bytes."""

DIFFERENT, SAME, UNSURE = range(3)
"""Results of comparing two images."""

IS_COMPILED = is_usable(__name__, EDITION)
if IS_COMPILED:
    from sluice.tidb.kernel._compiled import alike, gather, walk
else:
    from sluice.tidb.kernel.plain import alike, gather, walk

__all__ = [
    "BYTES",
    "DIFFERENT",
    "IS_COMPILED",
    "MOMENT",
    "NUMBER",
    "SAME",
    "UNLOOKED",
    "UNSURE",
    "alike",
    "gather",
    "walk",
]
