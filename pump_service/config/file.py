"""pump.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.pump_service.config.flags import CN_FLAGS, FILE_KEYS, IGNORED, SECURITY_FLAGS
from sluice.pump_service.config.settings import ConfigError
from sluice.pump_service.config.values import (
    capture_of,
    names_of,
    storage_value,
    table_of,
    text_of,
    value_of,
)
from sluice.pump_service.store.options import MAX_QUEUED, IndexOptions, StoreOptions

_STORAGE_KEYS = {
    "sync-log": "sync_log",
    "kv_chan_cap": "kv_chan_cap",
    "slow_write_threshold": "slow_write_threshold",
    "stop-write-at-available-space": "stop_write_at_available_space",
}
_KV_KEYS = {
    "block-cache-capacity": "block_cache_capacity",
    "block-restart-interval": "block_restart_interval",
    "block-size": "block_size",
    "compaction-L0-trigger": "compaction_l0_trigger",
    "compaction-table-size": "compaction_table_size",
    "write-buffer": "write_buffer",
}
_KV_IGNORED = {
    "compaction-total-size": "LevelDB fixes the size of its levels",
    "compaction-total-size-multiplier": "LevelDB fixes the size of its levels",
    "write-L0-pause-trigger": (
        "LevelDB fixes when it pauses writes; the pump's writes never wait for it"
    ),
    "write-L0-slowdown-trigger": (
        "LevelDB fixes when it slows writes; the pump's writes never wait for it"
    ),
}


def from_file(
    path: str, merged: dict[str, Any], security: dict[str, Any], warnings: list[str]
) -> StoreOptions:
    """Read a configuration file into `merged` and `security`; return its storage options.

    What has no effect here goes to `warnings`. Raises ConfigError.
    """
    try:
        with Path(path).open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} can't be read: {error.strerror}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    storage: dict[str, Any] = {}
    kv: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in document.items():
        where = f"{path}: key {key}"
        if key == "security":
            for name, item in table_of(value, where).items():
                inner = f"{path}: key security.{name}"
                if name not in SECURITY_FLAGS:
                    unknown.append(f"security.{name}")
                else:
                    security[name.replace("-", "_")] = (
                        names_of(item, inner) if name in CN_FLAGS else text_of(item, inner)
                    )
        elif key == "capture":
            merged["capture"] = capture_of(table_of(value, where), where)
        elif key == "storage":
            for name, item in table_of(value, where).items():
                inner = f"{path}: key storage.{name}"
                if name == "kv":
                    kv = _kv(table_of(item, inner), path, warnings, unknown)
                elif name not in _STORAGE_KEYS:
                    unknown.append(f"storage.{name}")
                else:
                    storage[_STORAGE_KEYS[name]] = storage_value(_STORAGE_KEYS[name], item, inner)
        elif key in IGNORED:
            warnings.append(f"{where} has no effect: {IGNORED[key]}")
        elif key in FILE_KEYS:
            merged[FILE_KEYS[key]] = value_of(FILE_KEYS[key], value, where)
        else:
            unknown.append(key)
    if unknown:
        raise ConfigError(
            f"{path}: unknown key{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        )
    if storage.get("kv_chan_cap", 0) > MAX_QUEUED:
        warnings.append(
            f"{path}: key storage.kv_chan_cap: no more than {MAX_QUEUED} records wait in memory;"
            " what is beyond is indexed from the value log"
        )
    if not storage.get("sync_log", True):
        warnings.append(
            f"{path}: key storage.sync-log is off: binlogs are acknowledged before they are on"
            " disk, and a power cut loses them"
        )
    return StoreOptions(**storage, kv=IndexOptions(**kv))


def _kv(
    table: Mapping[str, Any], path: str, warnings: list[str], unknown: list[str]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, item in table.items():
        where = f"{path}: key storage.kv.{name}"
        if name in _KV_IGNORED:
            warnings.append(f"{where} has no effect: {_KV_IGNORED[name]}")
        elif name not in _KV_KEYS:
            unknown.append(f"storage.kv.{name}")
        elif not isinstance(item, int) or isinstance(item, bool):
            raise ConfigError(f"{where}: expected a whole number, found {item!r}")
        elif item > 0:  # 0 and below mean the default
            out[_KV_KEYS[name]] = item
    return out
