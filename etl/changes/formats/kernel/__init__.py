"""Format rows that `sluice.tidb.native_images` has found as LOAD DATA's text, in compiled code.

It is compiled from `compiled.c` where that can be. Without it nothing is found, and rows are
written by way of Arrow (`sluice.etl.changes.formats.load_data`), to the same text
(tests/etl/changes/write_plans/test_found_images.py). `sluice.tidb.build_native` compiles it.
"""

from __future__ import annotations

from sluice.etl.changes.formats.kernel.plain import Spec
from sluice.tidb import kernel
from sluice.tidb.native import is_usable

EDITION = 4
"""Edition of `compiled.c`: what was compiled from another edition isn't used."""

GIVEN, SIGNED, UNSIGNED, YEAR, TEXT, BINARY, FIXED, DATE, DATETIME, TIME, ENUM = range(11)
"""Codes of how a column's values are written; GIVEN ones come as text."""

FEW = 64
"""Number of changes of a table up to which `net` finds their net effect."""

IS_COMPILED = kernel.IS_COMPILED and is_usable(__name__, EDITION)
if IS_COMPILED:
    from sluice.etl.changes.formats.kernel._compiled import lines, net
else:
    from sluice.etl.changes.formats.kernel.plain import lines, net

__all__ = [
    "BINARY",
    "DATE",
    "DATETIME",
    "ENUM",
    "FEW",
    "FIXED",
    "GIVEN",
    "IS_COMPILED",
    "SIGNED",
    "TEXT",
    "TIME",
    "UNSIGNED",
    "YEAR",
    "Spec",
    "lines",
    "net",
]
