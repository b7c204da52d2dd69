"""The pump's one address: takes connections, says how many there may be, and gives each to what speaks its protocol."""

from pump_service.front.descriptors import for_connections, raise_limit
from pump_service.front.port import Front
from pump_service.front.tls import client_tls, server_context

__all__ = ["Front", "client_tls", "for_connections", "raise_limit", "server_context"]
