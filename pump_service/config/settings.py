"""The pump's settings: every key and flag of the original's pump.toml, with its names, defaults, units and precedence.

A command-line flag beats the environment (`PUMP_<FLAG>`), which beats the file, which beats the default. An unknown key
is an error that names it. Keys without meaning here are accepted with a warning that says why.
"""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from errors import RequestError
from pump_service.store.options import MAX_QUEUED, IndexOptions, StoreOptions

DEFAULT_PORT = 8250
_DAY_S = 86400.0


class ConfigError(RequestError):
    """A setting that can't be used; the message names it."""


@dataclass(frozen=True, slots=True)
class Security:
    """`[security]`: paths of PEM files, and the common names a client certificate may have (empty: any)."""

    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    cert_allowed_cn: tuple[str, ...] = ()

    @property
    def on(self) -> bool:
        """True if the port speaks TLS."""
        return bool(self.ssl_cert)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a pump is told."""

    addr: str = ""
    advertise_addr: str = ""
    socket: str = ""
    pd_urls: str = "http://127.0.0.1:2379"
    data_dir: str = "data.pump"
    heartbeat_interval: float = 2.0  # s
    gc_s: float = 7 * _DAY_S
    log_level: str = "info"
    log_file: str = ""
    node_id: str = ""
    gen_binlog_interval: float = 3.0  # s
    prewrite_timeout: float = 600.0  # s; as the original's maxTxnTimeoutSecond
    gc_safepoint_ttl: int = 86_400  # s; 0: TiKV isn't asked to keep anything
    metrics_addr: str = ""
    metrics_interval: float = 15.0  # s
    max_message_size: int = 2**31 - 1  # bytes
    security: Security = field(default_factory=Security)
    storage: StoreOptions = field(default_factory=StoreOptions)
    warnings: tuple[str, ...] = ()


# Flag or top-level key -> (field of Config, parser). A key that is a flag only isn't accepted in the file.
_FLAGS = {
    "addr": "addr",
    "advertise-addr": "advertise_addr",
    "socket": "socket",
    "pd-urls": "pd_urls",
    "data-dir": "data_dir",
    "heartbeat-interval": "heartbeat_interval",
    "gc": "gc_s",
    "log-level": "log_level",
    "log-file": "log_file",
    "node-id": "node_id",
    "fake-binlog-interval": "gen_binlog_interval",
    "prewrite-timeout": "prewrite_timeout",
    "gc-safepoint-ttl": "gc_safepoint_ttl",
    "metrics-addr": "metrics_addr",
    "metrics-interval": "metrics_interval",
    "max-message-size": "max_message_size",
}
_FLAG_ONLY = {"max-message-size", "fake-binlog-interval"}
_FILE_KEYS = {key: name for key, name in _FLAGS.items() if key not in _FLAG_ONLY} | {
    "gen-binlog-interval": "gen_binlog_interval"
}
_SECURITY_FLAGS = ("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn")
_IGNORED = {
    "binlog-file-size": "segments of the value log are rotated at 500 MiB",
    "enable-binlog-slice": "binlogs are never sliced",
    "binlog-slice-size": "binlogs are never sliced",
    "log-rotate": "rotate the log file with logrotate",
    "enable-debug": "the debug pages are always on",
}
_BARE_FLAGS = {"enable-binlog-slice", "enable-debug"}
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
    "write-L0-pause-trigger": "LevelDB fixes when it pauses writes; the pump's writes never wait for it",
    "write-L0-slowdown-trigger": "LevelDB fixes when it slows writes; the pump's writes never wait for it",
}
_LEVELS = ("debug", "info", "warn", "error", "fatal")

USAGE = """usage: pump [flags]

  -addr host:port                address to listen on (default <local ip>:8250)
  -advertise-addr host:port      address that TiDB, Drainers and Sluice use (default: addr)
  -socket path                   also listen on this Unix socket
  -pd-urls list                  client URLs of PD, with commas (default http://127.0.0.1:2379)
  -data-dir path                 where binlogs are kept (default data.pump)
  -node-id id                    default hostname:port; kept in the data directory from then on
  -heartbeat-interval seconds    (default 2)
  -fake-binlog-interval seconds  a fake binlog is written when nothing came for so long (default 3)
  -prewrite-timeout seconds      a Prewrite of which TiKV knows nothing for so long is rolled back there (default 600)
  -gc-safepoint-ttl seconds      how long TiKV keeps what tells the end of unfinished transactions after the pump died
                                 (default 86400; 0: not at all)
  -gc days|duration              how long binlogs are kept, such as 7 or 8h (default 7)
  -log-level, -L level           debug, info, warn, error, fatal (default info)
  -log-file path                 default: standard error
  -metrics-addr host:port        Prometheus push gateway (default: none)
  -metrics-interval seconds      (default 15)
  -max-message-size bytes        largest WriteBinlog request (default 2147483647)
  -ssl-ca, -ssl-cert, -ssl-key path, -cert-allowed-cn names
  -config path                   pump.toml
  -V                             print the version
"""


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The settings from flags, environment (`PUMP_*`) and the file that `-config` or PUMP_CONFIG names.

    Raises ConfigError; SystemExit is never raised here.
    """
    flags = _parse_flags(argv)
    known = [*_FLAGS, *_SECURITY_FLAGS, *_IGNORED, "config"]
    env = {key: environ[name] for key in known if (name := "PUMP_" + key.upper().replace("-", "_")) in environ}
    if "PUMP_L" in environ:  # the original's variable is called after the flag, which it knows as -L only
        env.setdefault("log-level", environ["PUMP_L"])
    merged: dict[str, Any] = {}
    security: dict[str, Any] = {}
    warnings: list[str] = []
    storage = StoreOptions()
    path = flags.get("config", env.get("config", ""))
    if path:
        storage = _from_file(path, merged, security, warnings)
    for source, given in (("environment variable", env), ("flag", flags)):
        for key, text in given.items():
            where = f"{source} {_spelled(source, key)}"
            if key in _IGNORED:
                warnings.append(f"{where} has no effect: {_IGNORED[key]}")
            elif key in _SECURITY_FLAGS:
                security[key.replace("-", "_")] = _names(text, where) if key == "cert-allowed-cn" else text
            elif key != "config":
                merged[_FLAGS[key]] = _value(_FLAGS[key], text, where)
    config = Config(**merged, security=Security(**security), storage=storage)
    return _completed(replace(config, warnings=tuple(warnings)))


def parse_size(text: str | int) -> int:
    """Bytes from "10 gib", "42 MB" (42e6), "42 mib" (42 * 2^20) or a number. ValueError otherwise."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtpe]?)(i?)b?\s*", text.lower())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is no size such as '10 gib' or '42 MB'")
    power = " kmgtpe".index(match[2] or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def parse_gc(text: str | int) -> float:
    """Seconds from days ("7") or a Go duration ("8h", "1h30m"). ValueError if it is neither, or not above 0."""
    text = str(text)
    if re.fullmatch(r"[0-9]+", text):
        seconds = int(text) * _DAY_S
    else:
        if not re.fullmatch(r"(?:[0-9]+(?:\.[0-9]*)?(?:ms|us|µs|ns|h|m|s))+", text):
            raise ValueError(f"{text!r} is neither a number of days nor a duration such as 8h or 1h30m")
        unit = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
        seconds = sum(float(n) * unit[u] for n, u in re.findall(r"([0-9.]+)(ms|us|µs|ns|h|m|s)", text))
    if seconds <= 0:
        raise ValueError("it must be above 0")
    return seconds


def split_addr(addr: str) -> tuple[str, int]:
    """Host and port of `host:port`, also with a scheme. ValueError if there is no port."""
    parts = urlsplit(addr if "://" in addr else f"//{addr}")
    if parts.port is None:
        raise ValueError(f"{addr!r} is no host:port")
    return parts.hostname or "", parts.port


def _parse_flags(argv: Sequence[str]) -> dict[str, str]:
    """Go's flag syntax: -name value, -name=value, --name ….  The last one counts."""
    out: dict[str, str] = {}
    args = list(argv)
    while args:
        arg = args.pop(0)
        name, eq, value = arg.lstrip("-").partition("=")
        if not arg.startswith("-") or not name:
            raise ConfigError(f"unexpected argument {arg!r}; all settings are flags, see -h")
        name = {"L": "log-level"}.get(name, name)
        if name not in _FLAGS and name not in _SECURITY_FLAGS and name not in _IGNORED and name != "config":
            raise ConfigError(f"unknown flag -{name}, see -h")
        if name in _BARE_FLAGS:
            value = value or "true"
        elif not eq:
            if not args:
                raise ConfigError(f"flag -{name} needs a value")
            value = args.pop(0)
        out[name] = value
    return out


def _from_file(path: str, merged: dict[str, Any], security: dict[str, Any], warnings: list[str]) -> StoreOptions:
    try:
        with Path(path).open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"the configuration file {path} can't be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    storage: dict[str, Any] = {}
    kv: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in document.items():
        where = f"{path}: key {key}"
        if key == "security":
            for name, item in _table(value, where).items():
                inner = f"{path}: key security.{name}"
                if name not in _SECURITY_FLAGS:
                    unknown.append(f"security.{name}")
                else:
                    security[name.replace("-", "_")] = (
                        _names(item, inner) if name == "cert-allowed-cn" else _text(item, inner)
                    )
        elif key == "storage":
            for name, item in _table(value, where).items():
                inner = f"{path}: key storage.{name}"
                if name == "kv":
                    kv = _kv(_table(item, inner), path, warnings, unknown)
                elif name not in _STORAGE_KEYS:
                    unknown.append(f"storage.{name}")
                else:
                    storage[_STORAGE_KEYS[name]] = _storage_value(_STORAGE_KEYS[name], item, inner)
        elif key in _IGNORED:
            warnings.append(f"{where} has no effect: {_IGNORED[key]}")
        elif key in _FILE_KEYS:
            merged[_FILE_KEYS[key]] = _value(_FILE_KEYS[key], value, where)
        else:
            unknown.append(key)
    if unknown:
        raise ConfigError(f"{path}: unknown key{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}")
    if storage.get("kv_chan_cap", 0) > MAX_QUEUED:
        warnings.append(
            f"{path}: key storage.kv_chan_cap: no more than {MAX_QUEUED} records wait in memory; what is beyond is "
            "indexed from the value log"
        )
    if not storage.get("sync_log", True):
        warnings.append(
            f"{path}: key storage.sync-log is off: binlogs are acknowledged before they are on disk, and a power cut "
            "loses them"
        )
    return StoreOptions(**storage, kv=IndexOptions(**kv))


def _kv(table: Mapping[str, Any], path: str, warnings: list[str], unknown: list[str]) -> dict[str, Any]:
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


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a table, found {value!r}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected text, found {value!r}")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list):
        raise ConfigError(f"{where}: expected names, found {value!r}")
    return tuple(str(name).strip() for name in given if str(name).strip())


def _storage_value(name: str, item: Any, where: str) -> Any:
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


def _value(name: str, given: Any, where: str) -> Any:
    try:
        if name == "gc_s":
            return parse_gc(given)
        if name in ("heartbeat_interval", "gen_binlog_interval", "metrics_interval", "prewrite_timeout"):
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
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
    given = _text(given, where)
    if name == "log_level" and given.lower() not in _LEVELS:
        raise ConfigError(f"{where}: {given!r} is none of {', '.join(_LEVELS)}")
    return given


def _spelled(source: str, key: str) -> str:
    return f"-{key}" if source == "flag" else "PUMP_" + key.upper().replace("-", "_")


def _completed(config: Config) -> Config:
    """Fill in the addresses and check what hangs together."""
    addr = config.addr or f"{_local_ip()}:{DEFAULT_PORT}"
    try:
        host, _ = split_addr(addr)
    except ValueError as error:
        raise ConfigError(f"addr: {error}") from None
    advertise = config.advertise_addr or addr
    try:
        host, _ = split_addr(advertise)
    except ValueError as error:
        raise ConfigError(f"advertise-addr: {error}") from None
    if host in ("", "0.0.0.0", "::"):  # noqa: S104
        raise ConfigError(f"advertise-addr {advertise!r} is no address that others can connect to; set advertise-addr")
    if bool(config.security.ssl_cert) != bool(config.security.ssl_key):
        raise ConfigError("security: ssl-cert and ssl-key go together")
    if config.security.cert_allowed_cn and not config.security.ssl_ca:
        raise ConfigError("security: cert-allowed-cn needs ssl-ca, or no client is asked for a certificate")
    if not config.pd_urls.strip():
        raise ConfigError("pd-urls: no address given")
    return replace(config, addr=addr, advertise_addr=advertise)


def _local_ip() -> str:
    """The address that the default route uses, else the first that isn't loopback, else 127.0.0.1."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect(("192.0.2.1", 9))  # sends nothing: only asks the routing table
        return str(probe.getsockname()[0])
    except OSError:  # no default route
        addresses = [
            each.address for found in psutil.net_if_addrs().values() for each in found if each.family == socket.AF_INET
        ]
        return next((address for address in addresses if not address.startswith("127.")), "127.0.0.1")
    finally:
        probe.close()
