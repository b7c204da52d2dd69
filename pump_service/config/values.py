"""Settings as they are written: sizes, times, addresses, names."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from sluice.pump_service.config.settings import DAY_S, CaptureOptions, ConfigError
from sluice.pump_service.store.options import StoreOptions
from sluice.tidb.table_shares import Share

_LEVELS = ("debug", "info", "warn", "error", "fatal")


def parse_size(text: str | int) -> int:
    """Return bytes from "10 gib", "42 MB" (42e6), "42 mib" (42 * 2^20) or a number.

    ValueError otherwise.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtpe]?)(i?)b?\s*", text.lower())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"invalid size {text!r}: expected one such as '10 gib' or '42 MB'")
    power = " kmgtpe".index(match[2] or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def parse_gc(text: str | int) -> float:
    """Return seconds from days ("7") or a Go duration ("8h", "1h30m").

    ValueError if it is neither, or not above 0.
    """
    text = str(text)
    if re.fullmatch(r"[0-9]+", text):
        seconds = int(text) * DAY_S
    else:
        if not re.fullmatch(r"(?:[0-9]+(?:\.[0-9]*)?(?:ms|us|µs|ns|h|m|s))+", text):
            raise ValueError(
                f"{text!r} is neither a number of days nor a duration such as 8h or 1h30m"
            )
        unit = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
        seconds = sum(
            float(n) * unit[u] for n, u in re.findall(r"([0-9.]+)(ms|us|µs|ns|h|m|s)", text)
        )
    if seconds <= 0:
        raise ValueError("it must be above 0")
    return seconds


def split_addr(addr: str) -> tuple[str, int]:
    """Return host and port of `host:port`, also with a scheme. ValueError if there is no port."""
    parts = urlsplit(addr if "://" in addr else f"//{addr}")
    if parts.port is None:
        raise ValueError(f"invalid address {addr!r}: expected host:port")
    return parts.hostname or "", parts.port


def table_of(value: Any, where: str) -> dict[str, Any]:
    """Return a TOML table. Raises ConfigError that begins with `where`."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a table, found {value!r}")
    return value


def text_of(value: Any, where: str) -> str:
    """Return a text. Raises ConfigError."""
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected text, found {value!r}")
    return value


def names_of(value: Any, where: str) -> tuple[str, ...]:
    """Return the names of a list, or of a text with commas. Raises ConfigError."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list):
        raise ConfigError(f"{where}: expected names, found {value!r}")
    return tuple(str(name).strip() for name in given if str(name).strip())


def storage_value(name: str, item: Any, where: str) -> Any:
    """Return a value of `[storage]` as the field `name` of StoreOptions. Raises ConfigError."""
    try:
        if name == "sync_log":
            if not isinstance(item, bool):
                raise ValueError(f"expected true or false, found {item!r}")
            return item
        if name == "stop_write_at_available_space":
            return parse_size(item)
        number = float(item) if name == "slow_write_threshold" else int(item)
        if number <= 0:  # the original takes its default then
            return next(f.default for f in fields(StoreOptions) if f.name == name)
        return number
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None


def capture_of(table: dict[str, Any], where: str) -> CaptureOptions:
    """Return `[capture]` of the file, which switches it on unless it says `enabled = false`."""
    given: dict[str, Any] = {"enabled": True}
    for key, item in table.items():
        at = f"{where}.{key}"
        try:
            if key == "enabled" and isinstance(item, bool):
                given["enabled"] = item
            elif (
                key == "start-ts"
                and isinstance(item, int)
                and not isinstance(item, bool)
                and item >= 0
            ):
                given["start_ts"] = item
            elif key == "memory":
                given["memory"] = max(parse_size(item), 16 << 20)
            elif key == "share":
                given["share"] = Share.parse(item)
            elif key == "shares":
                given["shares"] = Share(item, item).count
            elif key in ("enabled", "start-ts"):
                raise ConfigError(
                    f"{at}: {item!r} is no {'timestamp' if key == 'start-ts' else 'true or false'}"
                )
            else:
                raise ConfigError(f"{where}: unknown key {key}")
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{at}: {error}") from None
    return CaptureOptions(**given)


def value_of(name: str, given: Any, where: str) -> Any:
    """Return the value of the setting `name`: seconds, bytes or true. Raises ConfigError."""
    try:
        if name == "gc_s":
            return parse_gc(given)
        if name in (
            "heartbeat_interval",
            "gen_binlog_interval",
            "metrics_interval",
            "prewrite_timeout",
        ):
            number = float(given)
            if number <= 0:
                raise ValueError("it must be above 0 seconds")
            return number
        if name == "gc_safepoint_ttl":
            if int(given) < 0:
                raise ValueError("it must be 0 seconds or more")
            return int(given)
        if name == "max_message_size":
            return max(1, min(int(given), 2**31 - 1))
        if name == "capture":
            if given not in ("true", "false"):
                raise ValueError(f"expected true or false, found {given!r}")
            return CaptureOptions(enabled=given == "true")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
    given = text_of(given, where)
    if name == "log_level" and given.lower() not in _LEVELS:
        raise ConfigError(f"{where}: {given!r} is none of {', '.join(_LEVELS)}")
    return given
