"""Listen on the pump's one address: accept, limit, and route connections by protocol."""

from sluice.pump_service.listener.port import (
    Listener,
    max_connection_descriptors,
    raise_nofile_limit,
)
from sluice.pump_service.listener.tls import client_tls, server_context

__all__ = [
    "Listener",
    "client_tls",
    "max_connection_descriptors",
    "raise_nofile_limit",
    "server_context",
]
