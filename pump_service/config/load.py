"""Load the pump's settings: every key and flag of the original's pump.toml.

Names, defaults, units and precedence are the original's. A command-line flag beats the environment
(`PUMP_<FLAG>`), which beats the file, which beats the default. An unknown key is an error that
names it. Keys without meaning here are accepted with a warning that gives the reason.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil

from sluice.pump_service.config.file import from_file
from sluice.pump_service.config.flags import CN_FLAGS, FLAGS, IGNORED, SECURITY_FLAGS, parse_flags
from sluice.pump_service.config.settings import Config, ConfigError, Security
from sluice.pump_service.config.values import names_of, split_addr, value_of
from sluice.pump_service.store.options import StoreOptions

DEFAULT_PORT = 8250


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Return the settings from flags, environment (`PUMP_*`) and the configuration file.

    The file is the one that `-config` or PUMP_CONFIG names. Raises ConfigError; SystemExit is
    never raised here.
    """
    flags = parse_flags(argv)
    known = [*FLAGS, *SECURITY_FLAGS, *IGNORED, "config"]
    env = {
        key: environ[name]
        for key in known
        if (name := "PUMP_" + key.upper().replace("-", "_")) in environ
    }
    # the original's variable is called after the flag, which it knows as -L only
    if "PUMP_L" in environ:
        env.setdefault("log-level", environ["PUMP_L"])
    merged: dict[str, Any] = {}
    security: dict[str, Any] = {}
    warnings: list[str] = []
    storage = StoreOptions()
    path = flags.get("config", env.get("config", ""))
    if path:
        storage = from_file(path, merged, security, warnings)
    for source, given in (("environment variable", env), ("flag", flags)):
        for key, text in given.items():
            where = f"{source} {_spelled(source, key)}"
            if key in IGNORED:
                warnings.append(f"{where} has no effect: {IGNORED[key]}")
            elif key in SECURITY_FLAGS:
                security[key.replace("-", "_")] = names_of(text, where) if key in CN_FLAGS else text
            elif key != "config":
                value = value_of(FLAGS[key], text, where)
                if (
                    key == "capture" and "capture" in merged
                ):  # the flag switches, the file has the rest
                    value = replace(merged["capture"], enabled=value.enabled)
                merged[FLAGS[key]] = value
    config = Config(**merged, security=Security(**security), storage=storage)
    return _completed(replace(config, warnings=tuple(warnings)))


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
        raise ConfigError(
            f"invalid advertise-addr {advertise!r}: others can't connect to it; set advertise-addr"
        )
    if bool(config.security.ssl_cert) != bool(config.security.ssl_key):
        raise ConfigError("security: ssl-cert and ssl-key go together")
    if not config.security.ssl_cert and (config.security.ssl_ca or config.security.names_clients):
        raise ConfigError(
            "security: ssl-ca and cert-allowed-cn need ssl-cert and ssl-key, or the port is plain"
            " text"
        )
    if config.security.names_clients and not config.security.ssl_ca:
        raise ConfigError(
            "security: cert-allowed-cn needs ssl-ca, or no client is asked for a certificate"
        )
    if config.capture.enabled and not config.gc_safepoint_ttl:
        raise ConfigError(
            "gc-safepoint-ttl: with [capture] it can't be 0, or TiKV drops changes before they are"
            " read"
        )
    if config.capture.shares and not all(split_addr(each)[1] for each in (addr, advertise)):
        raise ConfigError(
            "addr: with capture.shares it needs a port: each share's pump has one from there on"
        )
    if config.capture.shares and not config.capture.share.is_whole:
        raise ConfigError(
            "capture.share and capture.shares contradict each other: a pump has the one share that"
            " share names, or takes those that are free of so many as shares says"
        )
    if not config.pd_urls.strip():
        raise ConfigError("pd-urls: no address given")
    return replace(config, addr=addr, advertise_addr=advertise)


def _local_ip() -> str:
    """Return the address of the default route, else the first but loopback, else 127.0.0.1."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect(("192.0.2.1", 9))  # sends nothing: only asks the routing table
        return str(probe.getsockname()[0])
    except OSError:  # no default route
        addresses = [
            each.address
            for found in psutil.net_if_addrs().values()
            for each in found
            if each.family == socket.AF_INET
        ]
        return next(
            (address for address in addresses if not address.startswith("127.")), "127.0.0.1"
        )
    finally:
        probe.close()
