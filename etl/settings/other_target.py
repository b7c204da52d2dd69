"""Another target than the pipeline's downstream, for a job that writes.

It is a settings file of which the sections about a downstream and the rules count.

    [downstream]                # as in sluice.toml; [file] or [kafka] with it
    type = "file"
    [file]
    dir = "/mnt/again"

Sections [filter] and [[route]], if they are there, count in place of the pipeline's, but for its
masks: they are added to the other rules. A whole
sluice.toml does too: its [upstream], [relay], [spark] and [window] are left aside.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.sections import Settings
from sluice.etl.settings.sluice_toml import parse_settings, refuse_renames
from sluice.tidb.folded import folded

_OF_THE_PIPELINE = ("upstream", "relay", "spark", "window", "drainer-config")


def read_target(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings of the file at `path` that count, as JSON values without secrets.

    Raises SettingsError.
    """
    name = os.fspath(path)
    try:
        document = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name}: {error}") from None
    own = {key: value for key, value in document.items() if key not in _OF_THE_PIPELINE}
    _parsed(own, name)
    return own


def with_target(settings: Settings, document: Mapping[str, Any]) -> Settings:
    """Return the pipeline's settings with the downstream and rules that `read_target` found.

    Without rules there, the pipeline's stay. Columns that the pipeline masks stay masked whatever
    the rules there are. Raises SettingsError.
    """
    found = _parsed(document, "the other downstream")
    filters = settings.filters
    if "filter" in document:
        filters = found.filters.with_masks_of(filters)
    own_schemas = filters.own_schemas | {folded(found.downstream.checkpoint_schema)}
    made = replace(
        settings,
        downstream=found.downstream,
        file=found.file,
        kafka=found.kafka,
        apply=found.apply,
        filters=replace(filters, own_schemas=own_schemas),
        ignored_ts=found.ignored_ts if "filter" in document else settings.ignored_ts,
        routes=found.routes if "route" in document else settings.routes,
    )
    refuse_renames("the other downstream", made)
    return made


def _parsed(document: Mapping[str, Any], name: str) -> Settings:
    if "downstream" not in document:
        raise SettingsError(f"{name}: [downstream] is missing: it has the place to write to")
    return parse_settings(
        {**document, "upstream": {"pd-urls": "-"}, "relay": {"url": "file:///-"}}, name
    )
