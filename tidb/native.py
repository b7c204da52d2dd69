"""Load the compiled half of a kernel, if it is of the same source as the Python beside it."""

from __future__ import annotations

import os
import sys
from importlib import import_module

__all__ = ["is_usable"]


def is_usable(kernel: str, edition: int, *, in_any_byte_order: bool = False) -> bool:
    """Return whether a kernel was compiled from the source that is there.

    `kernel`: the package's name. `edition`: that of its `compiled.c`. Most read or
    write words as numpy and Arrow have them here, so only little-endian ones. `SLUICE_KERNEL=plain`
    leaves all of them out.
    """
    if os.environ.get("SLUICE_KERNEL") == "plain" or not (
        in_any_byte_order or sys.byteorder == "little"
    ):
        return False
    try:
        return bool(edition == import_module(f"{kernel}._compiled").EDITION)
    except ImportError:  # there was no compiler
        return False
