"""The SQL port: a thread a connection."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading

from sluice.devstack.tidb.sql.errors import SQLError
from sluice.devstack.tidb.sql.session import Session
from sluice.devstack.tidb.sql.system_tables import ClusterState
from sluice.devstack.tidb.sql.wire import MySQLConnection
from sluice.etl.changes import server_errors

_QUIT, _INIT_DB, _QUERY, _PING, _RESET = 1, 2, 3, 14, 31


class SQLServer:
    """Listen on `host`:`port` (0: any free one) until `stop`.

    `tls`: offered to clients that ask.
    """

    def __init__(
        self, state: ClusterState, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._state = state
        self._tls = tls
        self._listener = socket.create_server((host, port))
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._accept, name="sql", daemon=True)

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and end the connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connections.add(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="sql connection", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        wire = MySQLConnection(connection, self._tls)
        try:
            self._converse(wire, next(self._numbers))
        except (OSError, EOFError):
            pass  # the client is gone, or left unread what was sent
        finally:
            with self._lock:
                self._connections.discard(connection)
            wire.close()

    def _converse(self, wire: MySQLConnection, number: int) -> None:
        session = Session(self._state, number)
        try:
            login = wire.log_in(number, dict(self._state.users))
            if login.schema:
                session.use(login.schema)
        except SQLError as error:
            wire.error(error)
            return
        wire.ok()
        while True:
            wire.set_timeout(None)
            packet = wire.read_command()
            if packet[0] == _QUIT:
                return
            wire.set_timeout(float(session.variables.get("@@net_write_timeout")))
            try:
                self._answer(wire, session, packet)
            except SQLError as error:
                wire.error(error)
            except (
                ValueError,
                ArithmeticError,
                LookupError,
                TypeError,
            ) as error:  # a gap in the stand-in: say so
                wire.error(
                    SQLError(
                        server_errors.UNKNOWN_ERROR,
                        f"the stand-in failed: {type(error).__name__}: {error}",
                    )
                )

    def _answer(self, wire: MySQLConnection, session: Session, packet: bytes) -> None:
        command, rest = packet[0], packet[1:]
        if command == _QUERY:
            result = session.execute(rest.decode("utf-8", "surrogateescape"))
            if result.columns:
                wire.result(result.columns, result.rows)
            else:
                wire.ok(result.affected)
            return
        if command == _INIT_DB:
            session.use(rest.decode())
        elif command not in (_PING, _RESET):
            raise SQLError(server_errors.UNKNOWN_COMMAND, f"command {command} not supported now")
        wire.ok()
