"""The flags of the original, in Go's syntax, and what they are called in the file."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.pump_service.config.settings import ConfigError

# Flag or top-level key -> (field of Config, parser). A key that is a flag only isn't accepted in
# the file.
FLAGS = {
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
    "capture": "capture",
}
FLAG_ONLY = {"capture", "max-message-size", "fake-binlog-interval"}
FILE_KEYS = {key: name for key, name in FLAGS.items() if key not in FLAG_ONLY} | {
    "gen-binlog-interval": "gen_binlog_interval"
}
CN_FLAGS = (
    "cert-allowed-cn",
    "write-allowed-cn",
    "read-allowed-cn",
    "operate-allowed-cn",
    "scrape-allowed-cn",
)
SECURITY_FLAGS = ("ssl-ca", "ssl-cert", "ssl-key", *CN_FLAGS)
IGNORED = {
    "binlog-file-size": "segments of the value log are rotated at 500 MiB",
    "enable-binlog-slice": "binlogs are never sliced",
    "binlog-slice-size": "binlogs are never sliced",
    "log-rotate": "rotate the log file with logrotate",
    "enable-debug": "the debug pages are always on",
}
_BARE_FLAGS = {"capture", "enable-binlog-slice", "enable-debug"}


def parse_flags(argv: Sequence[str]) -> dict[str, str]:
    """Parse Go's flag syntax: -name value, -name=value, --name …. The last one counts."""
    out: dict[str, str] = {}
    args = list(argv)
    while args:
        arg = args.pop(0)
        name, eq, value = arg.lstrip("-").partition("=")
        if not arg.startswith("-") or not name:
            raise ConfigError(f"unexpected argument {arg!r}; all settings are flags, see -h")
        name = {"L": "log-level"}.get(name, name)
        if (
            name not in FLAGS
            and name not in SECURITY_FLAGS
            and name not in IGNORED
            and name != "config"
        ):
            raise ConfigError(f"unknown flag -{name}, see -h")
        if name in _BARE_FLAGS:
            value = value or "true"
        elif not eq:
            if not args:
                raise ConfigError(f"flag -{name} needs a value")
            value = args.pop(0)
        out[name] = value
    return out
