"""Read many records of a window at once.

Compiled from `compiled.c` if possible, else in Python.

Both give the same answers (tests/pump_service/store/test_reading_kernel.py).
`sluice.tidb.build_native` compiles it; `SLUICE_KERNEL=plain` forces Python's.
"""

from __future__ import annotations

from sluice.pump_service.store.kernel import plain
from sluice.pump_service.store.kernel.plain import KNOWN, NOTHING, ODD, UNCHECKED
from sluice.tidb.native import is_usable

EDITION = 2
"""Edition of `compiled.c`; a build of another edition isn't used."""

IS_COMPILED = is_usable(__name__, EDITION)
if IS_COMPILED:
    from sluice.pump_service.store.kernel._compiled import look, place
else:
    look, place = plain.look, plain.place

__all__ = ["IS_COMPILED", "KNOWN", "NOTHING", "ODD", "UNCHECKED", "look", "place"]
