"""Airflow's connections for a process without Airflow.

A task resolves those that the settings name, and passes them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.secrets import RESOLVED, connection_of
from sluice.etl.settings.sections import Settings

__all__ = ["ResolvedConnection", "resolve_connections", "use_connections"]

ResolvedConnections = dict[str, "ResolvedConnection | tuple[str, bool]"]
"""By name: a connection, or why there is none, and whether that is transient."""


@dataclass(frozen=True, slots=True)
class ResolvedConnection:
    """The fields of a connection that Sluice uses."""

    conn_type: str
    login: str | None
    password: str | None = field(repr=False)
    host: str | None
    extra_dejson: Mapping[str, Any] = field(repr=False)
    port: int | None = None
    schema: str | None = None

    @classmethod
    def of(cls, connection: Any) -> ResolvedConnection:
        """Return the fields of an Airflow connection."""
        it = connection
        return cls(
            it.conn_type, it.login, it.password, it.host, dict(it.extra_dejson), it.port, it.schema
        )


def resolve_connections(settings: Settings) -> ResolvedConnections:
    """Return the connections in the settings; for each that fails the reason."""
    found: ResolvedConnections = {}
    for key, name in (
        ("[downstream] password-connection", settings.downstream.password_connection),
        ("[downstream] connection", settings.downstream.connection),
        ("[upstream] sql-connection", settings.upstream.sql_connection),
        ("[upstream] connection", settings.upstream.connection),
        ("[kafka] connection", settings.kafka.connection),
        ("[spark] token-connection", settings.spark.token_connection),
        ("[relay] connection", settings.relay.connection),
        ("[archive] connection", settings.archive.connection),
    ):
        if name and name not in found:
            try:
                it = connection_of(key, name)
            except SettingsError as error:
                found[name] = str(error), error.transient
            else:
                found[name] = ResolvedConnection.of(it)
    return found


def use_connections(connections: ResolvedConnections) -> None:
    """Use these from now on, and ask Airflow for none of them."""
    RESOLVED.clear()
    for name, it in connections.items():
        RESOLVED[name] = (
            it if isinstance(it, ResolvedConnection) else SettingsError(it[0], transient=it[1])
        )
