"""Mask values of many rows in one call: compiled from `compiled.c` where that is possible.

Without it values are masked by `sluice.etl.changes.masks.mask_text`, each different one once, with
the same results (tests/etl/changes/masks/test_mask_kernel.py). `sluice.tidb.build_native` compiles
it; `SLUICE_KERNEL=plain` leaves it out.
"""

from __future__ import annotations

from sluice.tidb.native import is_usable

EDITION = 3
"""Edition of `compiled.c`: what was compiled from another edition isn't used."""

CONSTANT, PARTIAL, HASH, EMAIL, DIGITS, SHIFT, NUMBER = range(7)
"""Kinds of masks."""

IS_COMPILED = is_usable(__name__, EDITION)
if IS_COMPILED:
    from sluice.etl.changes.masks.kernel._compiled import rows, values
else:
    from sluice.etl.changes.masks.kernel.plain import rows, values

__all__ = [
    "CONSTANT",
    "DIGITS",
    "EMAIL",
    "HASH",
    "IS_COMPILED",
    "NUMBER",
    "PARTIAL",
    "SHIFT",
    "rows",
    "values",
]
