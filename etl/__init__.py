"""The pipeline: windows from the pumps to the relay log (land), from the relay log to the downstream (apply).

Names load on first use: Spark's workers, the command line and Airflow's DAG files need only parts of this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.apply import run_apply
    from etl.landing import run_land
    from etl.settings import CONFIG_VARIABLE, Settings, SettingsError, load_settings


__all__ = ["CONFIG_VARIABLE", "Settings", "SettingsError", "load_settings", "run_apply", "run_land"]

__getattr__ = on_first_use(
    __name__,
    {
        "CONFIG_VARIABLE": "etl.settings",
        "Settings": "etl.settings",
        "SettingsError": "etl.settings",
        "load_settings": "etl.settings",
        "run_apply": "etl.apply",
        "run_land": "etl.landing",
    },
)
