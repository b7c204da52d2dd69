"""Convert a transaction's rows in one call, and encode its Prewrite: compiled from `compiled.c` if
possible.

Where it isn't compiled, and for rows it doesn't know, `sluice.tidb.stored_rows` converts, with the
same result (tests/pump_service/capture/test_converting_kernel.py). `sluice.tidb.build_native`
compiles it; `SLUICE_KERNEL=plain` leaves it out.
"""

from __future__ import annotations

from sluice.pump_service.capture.kernel import plain
from sluice.pump_service.capture.kernel.plain import Tables, Target
from sluice.tidb.native import is_usable

EDITION = 3
"""Edition of `compiled.c`; a build of another edition isn't used."""

IS_COMPILED = is_usable(__name__, EDITION, in_any_byte_order=True)
if IS_COMPILED:
    from sluice.pump_service.capture.kernel._compiled import convert, encode
else:
    convert, encode = plain.convert, plain.encode

__all__ = ["IS_COMPILED", "Tables", "Target", "convert", "encode"]
