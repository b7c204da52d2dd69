"""Find the row changes of a batch's payloads in one call, in code compiled from `compiled.c`.

It is compiled where that can be. Without it nothing is found, and
`sluice.etl.landing.extract.row_extractor` goes over the payloads with whole arrays, which gives
the same changes (tests/etl/landing/extract/test_explode_kernel.py). `sluice.tidb.build_native`
compiles it; `SLUICE_KERNEL=plain` leaves it out.
"""

from __future__ import annotations

from sluice.tidb.native import is_usable

EDITION = 1
"""Edition of `compiled.c`: what was compiled from another edition isn't used."""

IS_COMPILED = is_usable(__name__, EDITION)
if IS_COMPILED:
    from sluice.etl.landing.extract.kernel._compiled import columns, scan
else:
    from sluice.etl.landing.extract.kernel.plain import columns, scan

__all__ = ["IS_COMPILED", "columns", "scan"]
