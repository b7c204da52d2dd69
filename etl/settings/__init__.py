"""The settings files: `sluice.toml`, and a `drainer.toml` under the keys it has today."""

from etl.settings.drainer_toml import read_drainer
from etl.settings.other_target import read_target, with_target
from etl.settings.sections import (
    MODES,
    Apply,
    Archive,
    Downstream,
    Quality,
    Relay,
    Settings,
    SettingsError,
    Spark,
    Target,
    Upstream,
    Window,
)
from etl.settings.sinks import File, Kafka
from etl.settings.sluice_toml import CONFIG_VARIABLE, load_settings, parse_settings

__all__ = [
    "CONFIG_VARIABLE",
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
    "Window",
    "load_settings",
    "parse_settings",
    "read_drainer",
    "read_target",
    "with_target",
]
