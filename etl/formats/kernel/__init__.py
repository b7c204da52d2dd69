"""Rows that `upstream.found` has found as LOAD DATA's text: compiled from `compiled.c` where that can be.

Without it nothing is found, and rows are written by way of Arrow (`etl.formats.load_data`), to the same text
(tests/etl/shapes/test_found_images.py). `upstream.compile_kernels` compiles it.
"""

from __future__ import annotations

from importlib import import_module

from etl.formats.kernel.plain import Spec
from upstream import kernel

EDITION = 2
"""Of `compiled.c`: what was compiled from another edition isn't used."""

GIVEN, SIGNED, UNSIGNED, YEAR, TEXT, BINARY, FIXED, DATE, DATETIME, TIME, ENUM = range(11)
"""How a column's values are written; GIVEN ones come as text."""


def _is_usable() -> bool:
    try:
        return kernel.IS_COMPILED and bool(import_module("etl.formats.kernel._compiled").EDITION == EDITION)
    except ImportError:  # there was no compiler
        return False


IS_COMPILED = _is_usable()
if IS_COMPILED:
    from etl.formats.kernel._compiled import lines
else:
    from etl.formats.kernel.plain import lines

__all__ = [
    "BINARY", "DATE", "DATETIME", "ENUM", "FIXED", "GIVEN", "IS_COMPILED", "SIGNED", "TEXT", "TIME", "UNSIGNED", "YEAR",
    "Spec", "lines",
]  # fmt: skip
