"""Connect to an SQL server that isn't trusted before it has shown who it is."""

from __future__ import annotations

from typing import Any

import pymysql.connections
import pymysql.err
from pymysql.constants import CR

__all__ = ["LoginConnection"]

_GREETING_BYTES = 1 << 20
"""of one packet before the login is complete: a greeting and what plugins exchange are a few hundred"""
_CLEAR = (b"mysql_clear_password", b"dialog")
"""plugins by which a server is given the password itself"""


class LoginConnection(pymysql.connections.Connection):
    """PyMySQL's connection, which gives the password in clear only over TLS with a checked certificate."""

    _is_logged_in = False

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        this: Any = self
        is_checked = this._secure and (this._ssl_required or this.unix_socket)
        if plugin_name in _CLEAR and not is_checked:
            this._force_close()
            raise pymysql.err.OperationalError(
                CR.CR_AUTH_PLUGIN_ERR,
                f"the server asks for the password in clear ({plugin_name.decode()}), which needs TLS with ssl-ca",
            )
        parent: Any = super()
        return parent._process_auth(plugin_name, auth_packet, handler)

    def _request_authentication(self) -> None:
        parent: Any = super()
        self._is_logged_in = False
        parent._request_authentication()
        self._is_logged_in = True

    def _read_bytes(self, num_bytes: int) -> bytes:
        parent: Any = super()
        if num_bytes > _GREETING_BYTES and not self._is_logged_in:
            this: Any = self
            this._force_close()
            raise pymysql.err.OperationalError(
                CR.CR_SERVER_LOST, f"a packet of {num_bytes} bytes before the login: this is no SQL server"
            )
        data: bytes = parent._read_bytes(num_bytes)
        return data
