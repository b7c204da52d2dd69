"""The pipeline: from the pumps to the relay log (land), from there to the downstream (apply).

Windows are landed. Names load on first use: Spark's workers, the command line and Airflow's DAG
files need only parts of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.apply import run_apply
    from sluice.etl.landing import run_land
    from sluice.etl.settings import CONFIG_VARIABLE, Settings, SettingsError, load_settings


__all__ = ["CONFIG_VARIABLE", "Settings", "SettingsError", "load_settings", "run_apply", "run_land"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "CONFIG_VARIABLE": "sluice.etl.settings",
        "Settings": "sluice.etl.settings",
        "SettingsError": "sluice.etl.settings",
        "load_settings": "sluice.etl.settings",
        "run_apply": "sluice.etl.apply",
        "run_land": "sluice.etl.landing",
    },
)
