"""The pipeline: windows from the pumps to the relay log (land), from the relay log to the downstream (apply).

The loops are imported on first use: Spark's workers and the command line need only parts of this room.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from etl.settings import CONFIG_VARIABLE, Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from etl.apply import run_apply
    from etl.landing import run_land

_ON_FIRST_USE = {"run_land": "etl.landing", "run_apply": "etl.apply"}

__all__ = ["CONFIG_VARIABLE", "Settings", "SettingsError", "load_settings", "run_apply", "run_land"]


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(importlib.import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
