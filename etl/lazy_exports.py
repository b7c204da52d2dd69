"""Public names of a room that are imported when they are first used.

Spark's workers come through a room's door, too; what only the client needs would cost each of them
time and memory.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_getattr"]


def lazy_getattr(room: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of the package `room`.

    `modules` has for each name the module that has it.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[room], name, value)
        return value

    return get
