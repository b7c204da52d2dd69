"""Read secrets: the settings file names their places, and never has their values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.etl.settings.errors import SettingsError

RESOLVED: dict[str, Any] = {}
"""Connections by name, or their errors, where there is no Airflow to ask.

See `sluice.etl.settings.airflow_connections`.
"""

_ask: Callable[[str], Any] | None = None


def ask_for_connections(ask: Callable[[str], Any]) -> None:
    """Have `ask` return the connection of a name: Airflow is another process.

    It raises SettingsError.
    """
    global _ask
    _ask = ask


def from_environment(key: str, variable: str) -> str:
    """Return the value of an environment variable.

    `key` names the setting in errors, as in ``[spark] token-env``. Raises SettingsError.
    """
    try:
        return os.environ[variable]
    except KeyError:
        raise SettingsError(
            f"{key}: the environment has no variable {variable}",
            hint=f"`export {variable}=…` where Sluice runs, or name another variable there",
        ) from None


def from_file(key: str, path: str) -> str:
    """Return the first line of a file. Raises SettingsError."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError, UnicodeDecodeError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else "it holds no line"
            if isinstance(error, IndexError)
            else "it is not UTF-8"
        )
        raise SettingsError(f"{key} {path}: {reason}") from None


def from_connection(key: str, connection: str) -> str:
    """Return the password of an Airflow connection, "" if it has none.

    Raises SettingsError, transient where Airflow can't be asked now.
    """
    return connection_of(key, connection).password or ""


def connection_of(key: str, connection: str) -> Any:
    """Return an Airflow connection, or the one of its name in `RESOLVED`.

    Raises as `from_connection`.
    """
    if (connections := RESOLVED.get(connection)) is not None:
        if isinstance(connections, SettingsError):
            raise connections
        return connections
    if _ask is not None:
        return _ask(connection)
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return Connection.get(connection)
    except Exception as error:  # Airflow's own: not found, or no way to ask for it now
        raise SettingsError(
            f"{key} {connection}: {type(error).__name__}: {error}",
            transient=not isinstance(error, AirflowNotFoundException),
        ) from None
