"""Match a message's rows, convert a transaction's, encode its Prewrite: compiled if possible.

Where `compiled.c` isn't compiled, and for rows it doesn't know, `matcher` and
`sluice.tidb.stored_rows` do the same (tests/pump_service/capture/test_matching_kernel.py,
test_converting_kernel.py). `sluice.tidb.build_native` compiles it; `SLUICE_KERNEL=plain` leaves it
out.
"""

from __future__ import annotations

from sluice.pump_service.capture.kernel import plain
from sluice.pump_service.capture.kernel.plain import Tables, Target
from sluice.tidb.native import is_usable

EDITION = 6
"""Edition of `compiled.c`; a build of another edition isn't used."""

IS_COMPILED = is_usable(__name__, EDITION, in_any_byte_order=True)
if IS_COMPILED:
    from sluice.pump_service.capture.kernel._compiled import convert, encode, match
else:
    convert, encode, match = plain.convert, plain.encode, plain.match

__all__ = ["IS_COMPILED", "Tables", "Target", "convert", "encode", "match"]
