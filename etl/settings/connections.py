"""Complete settings by the Airflow connections that they name.

Databases: `sluice.etl.settings.database_connection`. The upstream's PD and Kafka: here. Secret
values are never among the settings: they are asked for when they are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sluice.etl.settings.database_connection import database_address, tls_files
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.secrets import connection_of

__all__ = ["IS_SECRET", "kafka_secrets", "with_addresses"]

IS_SECRET = re.compile(r"password|secret|\.pem$|bearer\.token|oauthbearer\.config")
"""Finds options of librdkafka with secret values, by their names."""
_SERVERS = "bootstrap.servers"
_OF_CONSUMERS = ("group.", "auto.offset.reset", "enable.auto.")
"""Beginnings of options that a connection has for consumers."""


def with_addresses(name: str, document: Mapping[str, object]) -> dict[str, object]:
    """Complete a settings document by the connections that it names; its own keys count first.

    `name`: the file's, for errors. Raises SettingsError, transient where Airflow can't be asked.
    """
    found = dict(document)
    for section, key, address in _PLACES:
        raw = found.get(section)
        if isinstance(raw, Mapping) and isinstance(connection := raw.get(key), str) and connection:
            given = address(f"{name}: [{section}] {key}", connection)
            own = dict(raw)
            if isinstance(client := own.get("client", {}), Mapping) and "client" in given:
                own["client"] = {**given["client"], **client}
            found[section] = given | own
    return found


def _sql_address(key: str, connection: str) -> dict[str, Any]:
    return {f"sql-{field}": value for field, value in database_address(key, connection).items()}


def _cluster_address(key: str, connection: str) -> dict[str, Any]:
    """Return the keys of `[upstream]` that a connection with PD's address has."""
    it = connection_of(key, connection)
    files = tls_files(f"{key} {connection}", it.extra_dejson)
    files.pop("ssl-verify-identity", None)  # names of a cluster's servers are always checked
    return {"pd-urls": _servers(key, connection, it)} | files


def _kafka_address(key: str, connection: str) -> dict[str, Any]:
    """Return the keys of `[kafka]` that a connection has: brokers, and options without secrets.

    Its extra has librdkafka's options by their names, as Airflow's type ``kafka``.
    """
    it = connection_of(key, connection)
    options = {
        option: value
        for option, value in it.extra_dejson.items()
        if isinstance(value, str | int | bool)
        and option != _SERVERS
        and not option.startswith(_OF_CONSUMERS)
        and not IS_SECRET.search(option)
    }
    servers = it.extra_dejson.get(_SERVERS) or _servers(key, connection, it)
    return {"brokers": str(servers), "client": options}


def _servers(key: str, connection: str, it: Any) -> str:
    """Return ``host:port``, comma separated; the port of each host without one."""
    hosts = [host.strip() for host in str(it.host or "").split(",") if host.strip()]
    if not hosts:
        raise SettingsError(f"{key} {connection}: the connection names no host")
    return ",".join(
        host if ":" in host or not it.port else f"{host}:{int(it.port)}" for host in hosts
    )


def kafka_secrets(connection: str) -> dict[str, str]:
    """Return librdkafka's options with secret values that a connection has.

    Raises SettingsError, transient where Airflow can't be asked now.
    """
    it = connection_of("[kafka] connection", connection)
    return {
        option: str(value) for option, value in it.extra_dejson.items() if IS_SECRET.search(option)
    }


_PLACES: tuple[tuple[str, str, Callable[[str, str], dict[str, Any]]], ...] = (
    ("downstream", "connection", database_address),
    ("upstream", "sql-connection", _sql_address),
    ("upstream", "connection", _cluster_address),
    ("kafka", "connection", _kafka_address),
)
"""The sections that a connection may complete, the key that names it, and what it gives."""
