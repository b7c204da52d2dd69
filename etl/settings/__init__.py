"""The settings files: `sluice.toml`, and a `drainer.toml` under the keys it has today. Which pipelines there are is in
`etl.settings.pipelines`.

Names load on first use: DAG files ask only which pipelines there are, again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.settings.drainer_toml import read_drainer
    from etl.settings.errors import SettingsError
    from etl.settings.other_target import read_target, with_target
    from etl.settings.pipeline_names import CONFIG_VARIABLE, FOLDER_VARIABLE
    from etl.settings.sections import (
        MODES,
        Apply,
        Archive,
        Downstream,
        Quality,
        Relay,
        Settings,
        Target,
        Upstream,
        Verify,
        Window,
        downstream_name,
    )
    from etl.settings.sinks import File, Kafka
    from etl.settings.sluice_toml import load_settings, parse_settings
    from etl.settings.spark import Spark

__all__ = [
    "CONFIG_VARIABLE",
    "FOLDER_VARIABLE",
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

__getattr__ = on_first_use(
    __name__,
    {
        "read_drainer": "etl.settings.drainer_toml",
        "SettingsError": "etl.settings.errors",
        "read_target": "etl.settings.other_target",
        "with_target": "etl.settings.other_target",
        "MODES": "etl.settings.sections",
        "Apply": "etl.settings.sections",
        "Archive": "etl.settings.sections",
        "Downstream": "etl.settings.sections",
        "Quality": "etl.settings.sections",
        "Relay": "etl.settings.sections",
        "Settings": "etl.settings.sections",
        "Spark": "etl.settings.spark",
        "Target": "etl.settings.sections",
        "Upstream": "etl.settings.sections",
        "Verify": "etl.settings.sections",
        "Window": "etl.settings.sections",
        "downstream_name": "etl.settings.sections",
        "File": "etl.settings.sinks",
        "Kafka": "etl.settings.sinks",
        "CONFIG_VARIABLE": "etl.settings.pipeline_names",
        "FOLDER_VARIABLE": "etl.settings.pipeline_names",
        "load_settings": "etl.settings.sluice_toml",
        "parse_settings": "etl.settings.sluice_toml",
    },
)
