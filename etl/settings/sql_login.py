"""Connect to an SQL server that isn't trusted before it has proved its identity."""

from __future__ import annotations

from typing import Any

import pymysql.connections
import pymysql.err
from pymysql.constants import CR

__all__ = ["LoginConnection"]

_GREETING_BYTES = 1 << 20
"""of one packet before the login is complete: a greeting and what plugins exchange are a few
hundred
"""
_HEAD_BYTES = 4
_MAX_PACKET_BYTES = (1 << 24) - 1
"""A part of a packet with this size is followed by another one."""
_CLEARTEXT_PLUGINS = (b"mysql_clear_password", b"dialog")
"""plugins by which a server is given the password itself"""


class LoginConnection(pymysql.connections.Connection):
    """PyMySQL's connection, with checks.

    It sends the password in clear only over TLS with a checked certificate, and limits packets'
    size.
    """

    most_packet_bytes = 256 << 20
    """The largest packet, which is a row at the most.

    TiDB's largest row has 120 MB, as text hardly more than twice that.
    """
    _is_logged_in = False
    _packet_bytes = 0

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        this: Any = self
        is_checked = this._secure and (this._ssl_required or this.unix_socket)
        if plugin_name in _CLEARTEXT_PLUGINS and not is_checked:
            this._force_close()
            raise pymysql.err.OperationalError(
                CR.CR_AUTH_PLUGIN_ERR,
                f"the server asks for the password in clear ({plugin_name.decode()}), which needs"
                " TLS with ssl-ca",
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
                CR.CR_SERVER_LOST,
                f"a packet of {num_bytes} bytes before the login: this is no SQL server",
            )
        if num_bytes == _MAX_PACKET_BYTES:
            self._packet_bytes += num_bytes
            if self._packet_bytes > self.most_packet_bytes:
                this = self
                this._force_close()
                raise pymysql.err.OperationalError(
                    CR.CR_SERVER_LOST,
                    f"a packet of more than {self.most_packet_bytes >> 20} MiB: no row is that"
                    " large",
                )
        elif num_bytes != _HEAD_BYTES:
            self._packet_bytes = 0
        data: bytes = parent._read_bytes(num_bytes)
        return data
