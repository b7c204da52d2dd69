"""Define a pump's settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.errors import RequestError
from sluice.pump_service.store.options import StoreOptions
from sluice.tidb.table_shares import Share

DAY_S = 86400.0
WRITE, READ, OPERATE, SCRAPE = "write", "read", "operate", "scrape"
ROLES = frozenset((WRITE, READ, OPERATE, SCRAPE))
"""What a client may do: WriteBinlog; PullBinlogs and `sluice.Window`; changes by HTTP and debug
pages; the other pages, which every role may read.
"""


class ConfigError(RequestError):
    """A setting that can't be used; the message names it."""


@dataclass(frozen=True, slots=True)
class Security:
    """Hold `[security]`: paths of PEM files, and the common names of client certificates.

    An empty list accepts every certificate. A role with names of its own accepts
    only those; the other roles accept `cert_allowed_cn`.
    """

    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    cert_allowed_cn: tuple[str, ...] = ()
    write_allowed_cn: tuple[str, ...] = ()
    read_allowed_cn: tuple[str, ...] = ()
    operate_allowed_cn: tuple[str, ...] = ()
    scrape_allowed_cn: tuple[str, ...] = ()

    @property
    def on(self) -> bool:
        """Return whether the port speaks TLS."""
        return bool(self.ssl_cert)

    @property
    def names_clients(self) -> bool:
        """Return whether not every certificate of the CA may do everything."""
        return bool(self.cert_allowed_cn or self._own_names())

    def roles_of(self, names: Iterable[str]) -> frozenset[str]:
        """Return what a client whose certificate has these common names may do."""
        given = set(names)
        own = self._own_names()
        any_other = not self.cert_allowed_cn or not given.isdisjoint(self.cert_allowed_cn)
        return frozenset(
            role
            for role in ROLES
            if (not given.isdisjoint(own[role]) if role in own else any_other)
        )

    def _own_names(self) -> dict[str, tuple[str, ...]]:
        named = {
            WRITE: self.write_allowed_cn, READ: self.read_allowed_cn,
            OPERATE: self.operate_allowed_cn, SCRAPE: self.scrape_allowed_cn,
        }  # fmt: skip
        return {role: names for role, names in named.items() if names}


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """The section `[capture]`: whether the pump reads from TiKV, instead of taking binlogs."""

    enabled: bool = False
    start_ts: int = 0
    """Commit timestamp after which an empty data directory begins; 0: now."""
    memory: int = 512 << 20
    """Bytes of changes in memory, open and committed; beyond, they are in temporary files."""
    share: Share = field(default_factory=Share)
    """Share of the tables that is captured."""
    shares: int = 0
    """Count of the shares that this pump and others of its kind hold among them; 0: it has one."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a pump."""

    addr: str = ""
    advertise_addr: str = ""
    socket: str = ""
    pd_urls: str = "http://127.0.0.1:2379"
    data_dir: str = "data.pump"
    heartbeat_interval: float = 2.0  # s
    gc_s: float = 7 * DAY_S
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
    capture: CaptureOptions = field(default_factory=CaptureOptions)
    warnings: tuple[str, ...] = ()
