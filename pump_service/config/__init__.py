"""The pump's settings, from flags, environment and file."""

from pump_service.config.settings import USAGE, Config, ConfigError, Security, load, parse_gc, parse_size, split_addr

__all__ = ["USAGE", "Config", "ConfigError", "Security", "load", "parse_gc", "parse_size", "split_addr"]
