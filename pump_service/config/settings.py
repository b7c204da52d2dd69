"""What a pump is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from errors import RequestError
from pump_service.store.options import StoreOptions

DAY_S = 86400.0


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
    warnings: tuple[str, ...] = ()
