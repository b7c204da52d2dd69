"""The settings files: `sluice.toml`, and a `drainer.toml` under the keys it has today.

Which pipelines there are is in `sluice.etl.settings.pipelines`.

Names load on first use: DAG files ask only which pipelines there are, again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.settings.drainer_toml import read_drainer
    from sluice.etl.settings.errors import SettingsError
    from sluice.etl.settings.job_sections import Archive, Quality, Verify
    from sluice.etl.settings.other_target import read_target, with_target
    from sluice.etl.settings.pipeline_names import CONFIG_VARIABLE, FOLDER_VARIABLE
    from sluice.etl.settings.sections import (
        LAST_COMMIT_WINS,
        MODES,
        Apply,
        Downstream,
        Relay,
        Settings,
        Target,
        Upstream,
        Window,
        downstream_name,
    )
    from sluice.etl.settings.sinks import File, Kafka
    from sluice.etl.settings.sluice_toml import load_settings, parse_settings
    from sluice.etl.settings.spark import Spark

__all__ = [
    "CONFIG_VARIABLE",
    "FOLDER_VARIABLE",
    "LAST_COMMIT_WINS",
    "MODES",
    "Apply",
    "Archive",
    "Downstream",
    "File",
    "Kafka",
    "Quality",
    "Relay",
    "Settings",
    "SettingsError",
    "Spark",
    "Target",
    "Upstream",
    "Verify",
    "Window",
    "downstream_name",
    "load_settings",
    "parse_settings",
    "read_drainer",
    "read_target",
    "with_target",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "read_drainer": "sluice.etl.settings.drainer_toml",
        "SettingsError": "sluice.etl.settings.errors",
        "read_target": "sluice.etl.settings.other_target",
        "with_target": "sluice.etl.settings.other_target",
        "LAST_COMMIT_WINS": "sluice.etl.settings.sections",
        "MODES": "sluice.etl.settings.sections",
        "Apply": "sluice.etl.settings.sections",
        "Archive": "sluice.etl.settings.job_sections",
        "Downstream": "sluice.etl.settings.sections",
        "Quality": "sluice.etl.settings.job_sections",
        "Relay": "sluice.etl.settings.sections",
        "Settings": "sluice.etl.settings.sections",
        "Spark": "sluice.etl.settings.spark",
        "Target": "sluice.etl.settings.sections",
        "Upstream": "sluice.etl.settings.sections",
        "Verify": "sluice.etl.settings.job_sections",
        "Window": "sluice.etl.settings.sections",
        "downstream_name": "sluice.etl.settings.sections",
        "File": "sluice.etl.settings.sinks",
        "Kafka": "sluice.etl.settings.sinks",
        "CONFIG_VARIABLE": "sluice.etl.settings.pipeline_names",
        "FOLDER_VARIABLE": "sluice.etl.settings.pipeline_names",
        "load_settings": "sluice.etl.settings.sluice_toml",
        "parse_settings": "sluice.etl.settings.sluice_toml",
    },
)
