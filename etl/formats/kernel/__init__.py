"""Rows that `upstream.found` has found as LOAD DATA's text: compiled from `compiled.c` where that can be.

Without it nothing is found, and rows are written by way of Arrow (`etl.formats.load_data`), to the same text
(tests/etl/shapes/test_found_images.py). `upstream.compile_kernels` compiles it.
"""

from __future__ import annotations

from etl.formats.kernel.plain import Spec
from upstream import kernel
from upstream.compiled import is_usable

EDITION = 4
"""Of `compiled.c`: what was compiled from another edition isn't used."""

GIVEN, SIGNED, UNSIGNED, YEAR, TEXT, BINARY, FIXED, DATE, DATETIME, TIME, ENUM = range(11)
"""How a column's values are written; GIVEN ones come as text."""

FEW = 64
"""Changes of a table at most of which `net` tells what they come to."""

IS_COMPILED = kernel.IS_COMPILED and is_usable(__name__, EDITION)
if IS_COMPILED:
    from etl.formats.kernel._compiled import lines, net
else:
    from etl.formats.kernel.plain import lines, net

__all__ = [
    "BINARY", "DATE", "DATETIME", "ENUM", "FEW", "FIXED", "GIVEN", "IS_COMPILED", "SIGNED", "TEXT", "TIME", "UNSIGNED",
    "YEAR", "Spec", "lines", "net",
]  # fmt: skip
