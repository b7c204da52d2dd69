"""The pipeline: windows from the pumps to the relay log (land), from the relay log to the downstream (apply).

The loops are imported on first use: Spark's workers and the command line need only parts of this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.first_use import on_first_use
from etl.settings import CONFIG_VARIABLE, Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from etl.apply import run_apply
    from etl.landing import run_land


__all__ = ["CONFIG_VARIABLE", "Settings", "SettingsError", "load_settings", "run_apply", "run_land"]

__getattr__ = on_first_use(__name__, {"run_land": "etl.landing", "run_apply": "etl.apply"})
