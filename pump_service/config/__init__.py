"""The pump's settings, from flags, environment and file."""

from sluice.pump_service.config.load import load
from sluice.pump_service.config.settings import (
    OPERATE,
    READ,
    ROLES,
    SCRAPE,
    WRITE,
    Config,
    ConfigError,
    Security,
)
from sluice.pump_service.config.values import parse_gc, parse_size, split_addr

__all__ = [
    "OPERATE",
    "READ",
    "ROLES",
    "SCRAPE",
    "WRITE",
    "Config",
    "ConfigError",
    "Security",
    "load",
    "parse_gc",
    "parse_size",
    "split_addr",
]
