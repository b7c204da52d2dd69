"""Take the address of a database from an Airflow connection: host, port, user and TLS.

The fields are those of Airflow's type ``mysql``: extra ``ssl`` has the files ``ca``, ``cert`` and
``key``, and extra ``ssl_mode`` is that of MySQL's clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.secrets import connection_of, from_connection
from sluice.relay.storage.credentials import StoreCredentials, credentials_for, register_provider

__all__ = ["database_address", "send_password", "sent_password", "tls_files"]

_MODES = {"VERIFY_CA": False, "VERIFY_IDENTITY": True}
"""By the mode whether the server's certificate must be for its host."""
_FIELD = "password"


def database_address(key: str, connection: str) -> dict[str, Any]:
    """Return the keys of `[downstream]` that a connection has; its password stays where it is.

    `key` names the setting in errors. Raises SettingsError.
    """
    it = connection_of(key, connection)
    if not it.host:
        raise SettingsError(f"{key} {connection}: the connection names no host")
    found: dict[str, Any] = {"host": it.host}
    if it.port:
        found["port"] = int(it.port)
    if it.login:
        found["user"] = it.login
    return found | tls_files(f"{key} {connection}", it.extra_dejson)


def tls_files(where: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `ssl-` keys that a connection's extra has. Raises SettingsError."""
    files = extra.get("ssl") or {}
    if isinstance(files, str):
        try:
            files = json.loads(files)
        except ValueError:
            files = None
    if not isinstance(files, dict) or (unknown := sorted(set(files) - {"ca", "cert", "key"})):
        what = f"{', '.join(unknown)} isn't read" if isinstance(files, dict) else "no JSON object"
        raise SettingsError(
            f"{where}: extra ssl: {what}", hint="give the files ca, cert and key, or ca alone"
        )
    mode = str(extra.get("ssl_mode") or "").upper()
    if mode == "DISABLED":
        return {}
    if mode and not files.get("ca"):
        raise SettingsError(
            f"{where}: ssl_mode = {mode} without a file with the server's authorities",
            hint='add "ca" to the connection\'s extra ssl',
        )
    found: dict[str, Any] = {f"ssl-{name}": str(path) for name, path in files.items() if path}
    if mode in _MODES:
        found["ssl-verify-identity"] = _MODES[mode]
    return found


def send_password(key: str, connection: str) -> None:
    """Have Spark's workers know a connection's password; it is asked for when it is needed."""
    register_provider(_url(connection), partial(_lookup_password, key, connection))


def sent_password(connection: str) -> str:
    """Return the password of a connection that `send_password` named, here or on a worker.

    Raises SettingsError.
    """
    found = credentials_for(_url(connection))
    if found is None:
        raise SettingsError(f"[upstream] sql-connection {connection}: its password isn't known")
    return found.options[_FIELD]


def _lookup_password(key: str, connection: str) -> StoreCredentials:
    return StoreCredentials({_FIELD: from_connection(key, connection)})


def _url(connection: str) -> str:
    return f"connection://{quote(connection, safe='')}"
