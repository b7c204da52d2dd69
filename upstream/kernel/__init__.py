"""Where the values of many rows lie, found in one call: compiled from `compiled.c` where that can be.

Without it nothing is found, and rows are decoded by `upstream.rows`, which gives the same values
(tests/etl/shapes/test_found_images.py). `upstream.compile_kernels` compiles it; `SLUICE_KERNEL=plain` leaves it out.
"""

from __future__ import annotations

from upstream.compiled import is_usable

EDITION = 2
"""Of `compiled.c`: what was compiled from another edition isn't used."""

UNLOOKED, NUMBER, MOMENT, BYTES = range(4)
"""How the values of a column are compared: not at all, as numbers, as packed times, as bytes."""

DIFFERENT, SAME, UNSURE = range(3)
"""What two images are to each other."""

IS_COMPILED = is_usable(__name__, EDITION)
if IS_COMPILED:
    from upstream.kernel._compiled import alike, gather, walk
else:
    from upstream.kernel.plain import alike, gather, walk

__all__ = [
    "BYTES", "DIFFERENT", "IS_COMPILED", "MOMENT", "NUMBER", "SAME", "UNLOOKED", "UNSURE", "alike", "gather", "walk",
]  # fmt: skip
