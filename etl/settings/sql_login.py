"""Connect to an SQL server that isn't trusted before it has proved its identity."""

from __future__ import annotations

import ssl
from typing import Any

import pymysql.connections
import pymysql.err
from pymysql.constants import CR

__all__ = ["LoginConnection", "sql_tls"]

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


def sql_tls(ca: str, cert: str, key: str, *, verify_identity: bool) -> ssl.SSLContext | None:
    """Return the TLS context, None if no file asks for TLS.

    `ca`: file with the authorities that the server's certificate must come from; `cert` and `key`:
    this client's. Raises ValueError when one of them is missing, OSError for files that aren't
    there or aren't certificates; both name it.
    """
    if not (ca or cert or key):
        return None
    if not ca or bool(cert) != bool(key):
        raise ValueError("TLS needs ssl-ca; a client certificate needs both ssl-cert and ssl-key")
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise OSError(f"ssl-ca {ca}, ssl-cert {cert}, ssl-key {key}: {error}") from None
    context.check_hostname = verify_identity
    # Python 3.13 refuses certificates without the identifiers of RFC 5280, which TiDB, MySQL and
    # Python 3.12 take
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
