"""Read one section of a settings file into its dataclass, with errors that name the key.

Imports nothing heavy: DAG files read section ``[airflow]`` by it.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import TypeVar

from sluice.etl.settings.errors import SettingsError

__all__ = ["parse_section"]

T = TypeVar("T")
_SECRET = re.compile(r"(^|[-_])(password|passwd|pwd|secret|token)$", re.IGNORECASE)
_POSITIVE_KEYS = {
    "max_transactions",
    "max_bytes",
    "idle_interval_ms",
    "poll_interval_ms",
    "interval_ms",
    "max_rows",
    "aligned_chunk_wait_ms",
    "worker_count",
    "connect_timeout_s",
    "read_timeout_s",
    "max_file_bytes",
    "max_message_bytes",
    "timeout_s",
    "rows_per_second",
    "megabytes_per_second",
    "days",
    "delay_ms",
}


def _dotted(table: Mapping[str, object]) -> dict[str, object]:
    """Join nested tables into dotted keys, as TOML splits ``spark.executor.memory`` into three."""
    found: dict[str, object] = {}
    for key, value in table.items():
        inner = _dotted(value) if isinstance(value, dict) else {"": value}
        found |= {f"{key}.{rest}".rstrip("."): one for rest, one in inner.items()}
    return found


def parse_section(name: str, section: str, kind: type[T], raw: Mapping[str, object]) -> T:
    """Return a section of a settings file as its dataclass; `name` is the file's, for errors.

    Raises SettingsError for unknown keys, wrong types, missing keys and passwords.
    """
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for key, value in raw.items():
        attribute = key.replace("-", "_")
        if attribute not in hints and _SECRET.search(key):
            what, where = (
                ("tokens", "[spark]") if section == "spark" else ("passwords", "[downstream]")
            )
            raise SettingsError(
                f"{name}: [{section}] {key}: {what} are not written into this file; name its place"
                f" with {what[:-1]}-env (an environment variable), {what[:-1]}-file (a file's first"
                f" line) or {what[:-1]}-connection (an Airflow connection) in {where}"
            )
        if attribute not in hints or "_" in key:
            known = ", ".join(hint.replace("_", "-") for hint in hints)
            raise SettingsError(f"{name}: unknown key [{section}] {key}; known are {known}")
        wanted = typing.get_origin(hints[attribute]) or hints[attribute]
        wanted = list if wanted is tuple else wanted  # TOML has lists alone
        if type(value) is not wanted:
            raise SettingsError(
                f"{name}: [{section}] {key} = {value!r}: {wanted.__name__} expected"
            )
        if isinstance(value, list):
            of, *_ = typing.get_args(hints[attribute])
            if not all(type(item) is of for item in value):
                items = "numbers" if of is int else "texts"
                raise SettingsError(
                    f"{name}: [{section}] {key} = {value!r}: a list of {items} expected"
                )
        value = _dotted(value) if isinstance(value, dict) else value
        for option, scalar in value.items() if isinstance(value, dict) else ():
            if not isinstance(scalar, str | int | bool):
                raise SettingsError(
                    f"{name}: [{section}.{key}] {option} = {scalar!r}: a text, a number, true or"
                    " false expected"
                )
        if attribute in _POSITIVE_KEYS and typing.cast(int, value) <= 0:
            raise SettingsError(f"{name}: [{section}] {key} = {value!r}: must be above 0")
        is_tuple = typing.get_origin(hints[attribute]) is tuple
        values[attribute] = tuple(typing.cast(list[object], value)) if is_tuple else value
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = (
            entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        )
        if required and entry.name not in values:
            raise SettingsError(f"{name}: [{section}] {entry.name.replace('_', '-')} is missing")
    return kind(**values)
