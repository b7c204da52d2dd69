"""A pipeline's settings: one TOML file, typed, with errors that name the key.

The file is named by the environment variable ``SLUICE_CONFIG``, or by its pipeline
(`sluice.etl.settings.pipelines`). Keys are written with hyphens, as in TiDB Binlog's own files;
every key but ``[upstream] pd-urls``, ``[relay] url`` and what the kind of downstream needs
(``[downstream] host`` or ``connection``, ``[file] dir``, ``[kafka] brokers`` and ``savepoint``) has
a default. Passwords are never written in it: they come from the environment, a file or an Airflow
connection. A connection is asked for addresses when the file is read, and for a password when it is
needed.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path

from sluice.etl.changes.mark_table import MARK_SCHEMA
from sluice.etl.settings.conflict_checks import check_conflicts
from sluice.etl.settings.connections import with_addresses
from sluice.etl.settings.drainer_toml import DrainerSettingsError, read_drainer
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.job_sections import Quality
from sluice.etl.settings.kafka_checks import check_kafka, check_left_out
from sluice.etl.settings.mask_rules import parse_mask_section
from sluice.etl.settings.pipeline_names import CONFIG_VARIABLE, FOLDER_VARIABLE, NAME, name_of
from sluice.etl.settings.ring_checks import check_ring
from sluice.etl.settings.rule_error import RuleError
from sluice.etl.settings.rules import parse_filter, parse_routes
from sluice.etl.settings.section_parser import parse_section
from sluice.etl.settings.sections import MODES, Downstream, Settings
from sluice.etl.settings.store_connection import provide_credentials

log = logging.getLogger("sluice")


RULE_SECTIONS = {"filter", "route"}
_DERIVED_FIELDS = ("filters", "routes", "ignored_ts", "relay_log_values", "name")


def load_settings(path: str | os.PathLike[str] | None = None) -> Settings:
    """Read the settings file at `path`, or the one that ``SLUICE_CONFIG`` names.

    Raises SettingsError.
    """
    name = os.fspath(path) if path is not None else os.environ.get(CONFIG_VARIABLE, "")
    if not name:
        raise SettingsError(
            f"no settings: pass a file or set {CONFIG_VARIABLE} to one, or name a pipeline of"
            f" ${FOLDER_VARIABLE}"
        )
    try:
        text = Path(name).read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name}: {error}") from None
    settings = parse_settings(_with_drainer(name, document), name)
    quality = _resolve_folders(name, settings.quality)
    pipeline = name_of(Path(name))
    relay = dataclasses.replace(settings.relay, pipeline=settings.relay.pipeline or pipeline)
    return dataclasses.replace(settings, quality=quality, relay=relay, name=pipeline)


def _resolve_folders(name: str, quality: Quality) -> Quality:
    """Resolve the settings' folders, relative to the settings file's."""
    path = Path(name).resolve()
    here = path.parent
    own = "quality" if path.name == "sluice.toml" else f"quality-{path.stem}"
    docs = str(here / quality.docs) if quality.docs else ""
    return dataclasses.replace(quality, suites=str(here / (quality.suites or own)), docs=docs)


def _with_drainer(name: str, document: dict[str, object]) -> dict[str, object]:
    """Add the settings of the drainer.toml that a document names, and return the result."""
    path = document.pop("drainer-config", None)
    if path is None:
        return document
    if not isinstance(path, str) or not path:
        raise SettingsError(f"{name}: drainer-config = {path!r}: a path expected")
    try:
        drainer = read_drainer(Path(name).parent / path)
    except DrainerSettingsError as error:
        raise SettingsError(f"{name}: drainer-config: {error}") from None
    for warning in drainer.warnings:
        log.warning("%s", warning)
    merged: dict[str, object] = dict(drainer.document)
    for section, raw in document.items():
        there = drainer.document.get(section)
        merged[section] = there | raw if isinstance(there, dict) and isinstance(raw, dict) else raw
    return merged


def known_sections() -> dict[str, type]:
    """Return the sections that have a dataclass, with it; `RULE_SECTIONS` are the others."""
    hints = typing.get_type_hints(Settings)
    return {name: kind for name, kind in hints.items() if name not in _DERIVED_FIELDS}


def parse_settings(document: Mapping[str, object], name: str = "settings") -> Settings:
    """Check a parsed settings document and give it its types; `name` is used in errors.

    Raises SettingsError.
    """
    document = with_addresses(name, document)
    sections: dict[str, object] = {}
    hints = known_sections()
    for key in document:
        if key not in hints and key not in RULE_SECTIONS:
            there = ", ".join([*(f"[{known}]" for known in hints), "[filter]", "[[route]]"])
            raise SettingsError(f"{name}: unknown section [{key}]; there are {there}")
    for section, kind in hints.items():
        raw = document.get(section, {})
        if not isinstance(raw, Mapping):
            raise SettingsError(f"{name}: [{section}] must be a table")
        sections[section] = parse_section(name, section, kind, raw)
    settings = Settings(
        **sections,  # type: ignore[arg-type]
        **_rules(name, document, typing.cast(Downstream, sections["downstream"])),  # type: ignore[arg-type]
    )
    if settings.apply.mode not in MODES:
        raise SettingsError(
            f"{name}: [apply] mode = {settings.apply.mode!r}: must be"
            f" {' or '.join(map(repr, MODES))}"
        )
    _check_places(name, settings)
    _check_pipeline(name, settings)
    _check_spans(name, settings)
    _check_spark(name, settings)
    check_ring(name, settings)
    _check_downstream(name, settings)
    check_conflicts(name, settings)
    _check_masks(name, settings)
    provide_credentials(settings)
    return settings


def _check_places(name: str, settings: Settings) -> None:
    from sluice.relay import RelayError, refuse_credentials

    for section, url in (("relay", settings.relay.url), ("archive", settings.archive.url)):
        try:
            refuse_credentials(url)
        except RelayError as error:
            raise SettingsError(f"{name}: [{section}] url: {error}") from None


def _check_pipeline(name: str, settings: Settings) -> None:
    if settings.relay.pipeline and not NAME.match(settings.relay.pipeline):
        raise SettingsError(
            f"{name}: [relay] pipeline = {settings.relay.pipeline!r}: letters, digits, _ and -"
            " only, at most 64"
        )


def _check_spark(name: str, settings: Settings) -> None:
    try:
        settings.spark.check()
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None


def _check_spans(name: str, settings: Settings) -> None:
    spans = ("every", "keep", "snapshots-every", "snapshots-keep", "drills-every")
    spanned: list[tuple[str, object, str]] = [
        ("keep", settings.relay, "keep_ms"),
        *([("put-every", settings.relay, "put_every_ms")] if settings.relay.put_every else []),
        *((key, settings.archive, f"{key.replace('-', '_')}_ms") for key in spans),
        ("every", settings.quality, "every_ms"),
        ("every", settings.verify, "every_ms"),
        ("hours", settings.quality, "hours_utc"),
    ]
    if settings.quality.keep <= 0:
        raise SettingsError(f"{name}: [quality] keep = {settings.quality.keep}: must be above 0")
    for key, section, attribute in spanned:
        try:
            getattr(section, attribute)
        except ValueError as error:
            raise SettingsError(
                f"{name}: [{type(section).__name__.lower()}] {key} = {error}"
            ) from None


def _rules(name: str, document: Mapping[str, object], downstream: Downstream) -> dict[str, object]:
    raw = document.get("filter", {})
    if not isinstance(raw, Mapping):
        raise SettingsError(f"{name}: [filter] must be a table")
    own = [downstream.checkpoint_schema, downstream.recycle_schema]
    if downstream.loopback_control:
        own.append(MARK_SCHEMA)
    try:
        filters, ignored_ts = parse_filter(raw, own)
        return {
            "filters": filters,
            "ignored_ts": ignored_ts,
            "routes": parse_routes(document.get("route", []), own),
            "relay_log_values": parse_mask_section(raw.get("mask", {})).relay_log,
        }
    except RuleError as error:
        raise SettingsError(f"{name}: {error}") from None


def refuse_renames(name: str, settings: Settings) -> None:
    """Raise SettingsError for a rule of databases alone, if the pipeline writes files or topics."""
    kind = settings.downstream.type
    for route in settings.routes.rules if kind != "mysql" else ():
        if route.source_column:
            raise SettingsError(
                f"{name}: {route.text}: source-column is for databases alone, and [downstream] type"
                f" is {kind}"
            )
    for rule in settings.filters.columns if kind != "mysql" else ():
        if rule.added or rule.soft_delete or rule.history:
            raise SettingsError(
                f"{name}: {rule.text}: columns can be added in databases alone, and [downstream]"
                f" type is {kind}"
            )


def _check_masks(name: str, settings: Settings) -> None:
    rule = settings.filters.masking_rule
    if rule is not None and settings.archive.iceberg:
        raise SettingsError(
            f"{name}: {rule.text} masks columns, and [archive] iceberg shows all that the archive"
            " has, which may be older than the masks and have clear values. Leave out iceberg"
        )


def _check_downstream(name: str, settings: Settings) -> None:
    match settings.downstream.type:
        case "mysql":
            if not settings.downstream.host:
                raise SettingsError(f"{name}: [downstream] host is missing")
        case "file" | "kafka" as kind:
            refuse_renames(name, settings)
            try:
                _check_sink(kind, settings)
            except ValueError as error:
                raise SettingsError(f"{name}: {error}") from None
        case kind:
            raise SettingsError(
                f"{name}: [downstream] type = {kind!r}: must be 'mysql', 'file' or 'kafka'"
            )


def _check_sink(kind: str, settings: Settings) -> None:
    """Raise ValueError that names the key, for a sink that isn't a database."""
    if kind == "file":
        settings.file.check()
        return
    check_kafka(settings.kafka)
    if not settings.routes.rules:  # dispatches have the routed names
        check_left_out(settings.kafka.routing, settings.filters)
