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
USAGE = """usage: pump [flags]

  -addr host:port                address to listen on (default <local ip>:8250)
  -advertise-addr host:port      address that TiDB, Drainers and Sluice use (default: addr)
  -socket path                   also listen on this Unix socket
  -pd-urls list                  client URLs of PD, with commas (default http://127.0.0.1:2379)
  -data-dir path                 where binlogs are kept (default data.pump)
  -node-id id                    default hostname:port; kept in the data directory from then on
  -heartbeat-interval seconds    (default 2)
  -fake-binlog-interval seconds  a fake binlog is written when nothing came for so long (default 3)
  -prewrite-timeout seconds      a Prewrite of which TiKV knows nothing for so long is rolled back
                                 there (default 600)
  -gc-safepoint-ttl seconds      how long TiKV keeps what tells the end of unfinished transactions
                                 after the pump died (default 86400; 0: not at all)
  -gc days|duration              how long binlogs are kept, such as 7 or 8h (default 7)
  -log-level, -L level           debug, info, warn, error, fatal (default info)
  -log-file path                 default: standard error
  -metrics-addr host:port        Prometheus push gateway (default: none)
  -metrics-interval seconds      (default 15)
  -max-message-size bytes        largest WriteBinlog request (default 2147483647)
  -capture                       read changes from TiKV itself, instead of taking TiDB's binlogs;
                                 [capture] in the file
  -ssl-ca, -ssl-cert, -ssl-key path, -cert-allowed-cn names
  -write-allowed-cn, -read-allowed-cn, -operate-allowed-cn, -scrape-allowed-cn names
  -config path                   pump.toml
  -V                             print the version
"""


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
