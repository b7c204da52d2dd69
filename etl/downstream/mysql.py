"""Hold the one session with a MySQL-protocol downstream: transactions, statements, loads.

`_connection` has PyMySQL's connection with LOAD DATA from memory, `_statements_ahead` what is
pipelined.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pymysql
import pymysql.connections

from sluice.etl.changes import server_errors
from sluice.etl.changes.dialect import Dialect, UnknownServerError
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.load_statements import replace_statements
from sluice.etl.changes.formats.sql_text import double_backslashes, fill_placeholders
from sluice.etl.changes.mark_table import MARK_ROWS
from sluice.etl.downstream import _session_setup
from sluice.etl.downstream._connection import (
    DownstreamConnection,
    DownstreamError,
    LoadOutcome,
    downstream_error,
)
from sluice.etl.downstream._loopback_marks import SessionMarks
from sluice.etl.downstream._pipelining import (
    MIN_PACKET_BYTES,
    LoadRejected,
    PipelinedStatement,
    StatementResult,
    execute_pipelined,
)
from sluice.etl.downstream._statements_ahead import (
    NO_ESCAPES,
    LoadData,
    PipeliningState,
    Query,
    StatementOutcome,
    pipelined_load,
    pipelined_statement,
    query_statement,
)
from sluice.etl.downstream.grants import check_rights
from sluice.etl.settings import Downstream

if TYPE_CHECKING:
    from sluice.etl.changes.formats.mysql_rows import RowBlock

_OPEN_SESSIONS: weakref.WeakSet[MySQLSession] = weakref.WeakSet()
_LOAD_MESSAGE = re.compile(r"Records: (\d+)\s+Deleted: (\d+)\s+Skipped: (\d+)\s+Warnings: (\d+)")


def own_session_ids() -> set[int]:
    """Return the servers' numbers of the sessions that this process has open, on any server."""
    return {session.number for session in tuple(_OPEN_SESSIONS) if session.is_connected}


class MySQLSession:
    """One session.

    Every method raises DownstreamError; after one the session must be rolled back or connected
    again.
    """

    before_write: Callable[[], None] | None = None
    """Called before every `execute` and `load`; raises if nothing may be written.

    See `sluice.etl.downstream.sinks.mysql`.
    """

    doubles_backslashes = False
    """Whether strings in statements are written as for a session without backslash escapes."""

    def __init__(
        self,
        settings: Downstream,
        unix_socket: str | None = None,
        ahead: PipeliningState | None = None,
    ) -> None:
        self._settings = settings
        self._unix_socket = unix_socket
        self.ahead = ahead or PipeliningState()
        self._connection: DownstreamConnection | None = None
        self._dialect: Dialect | None = None
        self.known_tables: set[str] = set()
        """Full names of tables that were looked at in this session; for its users."""
        self.listed_tables: dict[str, frozenset[str]] = {}
        """Tables by schema whose engine has transactions, where all were listed in this session."""
        self.number = 0
        """The server's number of the session that was connected last."""
        self.round_trip_s = 0.0
        """Duration of this session's fastest answer to a statement; 0 before the first."""
        self._has_written = False
        """Whether a statement that writes was sent since the last commit."""
        self._marks: SessionMarks | None = None
        """Set while connected, with loopback control."""

    @property
    def address(self) -> str:
        """Return `user@host:port`, for messages."""
        settings = self._settings
        return f"{settings.user}@{self._unix_socket or f'{settings.host}:{settings.port}'}"

    @property
    def recycle_schema(self) -> str:
        """Return the database that keeps dropped tables."""
        return self._settings.recycle_schema

    @property
    def dialect(self) -> Dialect:
        """Return the capabilities of the server that was connected to last.

        Raises DownstreamError before the first connect.
        """
        if self._dialect is None:
            raise DownstreamError(server_errors.SERVER_GONE, f"{self.address}: not connected yet")
        return self._dialect

    @property
    def connection(self) -> pymysql.connections.Connection:
        """Return the connection for libraries that use DB-API, to read only.

        They raise PyMySQL's errors. Raises DownstreamError if the session isn't connected.
        """
        return self._open()

    @property
    def is_connected(self) -> bool:
        """Return whether a session was started and not closed; the server may have ended it."""
        return self._connection is not None

    def connect(self) -> None:
        """Close what is open and start a session.

        It has UTC, strict mode, zero dates and zero ids allowed, foreign keys unchecked, and all
        else of `sluice.etl.downstream._session_setup`. Raises DownstreamError, also if the server
        or the user's rights don't suffice for writing.
        """
        self.close()
        self._has_written = False
        settings = self._settings
        try:
            connection = DownstreamConnection(
                host=settings.host,
                port=settings.port,
                user=settings.user,
                password=settings.password().encode(),
                unix_socket=self._unix_socket,
                charset="utf8mb4",
                autocommit=False,
                local_infile=True,
                connect_timeout=settings.connect_timeout_s,
                read_timeout=settings.connect_timeout_s,  # for the handshake
                write_timeout=settings.connect_timeout_s,
                ssl=settings.ssl_context(),
            )
        except (pymysql.err.MySQLError, OSError) as error:
            if isinstance(
                getattr(error, "original_exception", error), ssl.SSLCertVerificationError
            ):
                raise DownstreamError(
                    server_errors.SSL_ERROR,
                    f"{self.address}: {error}",
                    "see [downstream] ssl-ca and ssl-verify-identity",
                ) from error
            raise self._error(error) from error
        self._connection = connection
        self.known_tables = set()
        self.listed_tables = {}
        self.round_trip_s = 0.0
        token = secrets.token_hex(8)
        try:
            self.query("SET @sluice_session = %s", (token,))
            variables = _session_setup.set_up(self.query, settings.read_timeout_s, self.address)
            server = str(connection.get_server_info())  # type: ignore[no-untyped-call] # pymysql's stubs lack it
            self._dialect = Dialect.from_version(server, variables)
            own = settings.checkpoint_schema, settings.recycle_schema
            check_rights(self.query, own, self.address, process=not self._dialect.is_tidb)
            self._check_session(token)
            self.commit()
            self._marks = None
            if settings.channel is not None:
                self._marks = SessionMarks(self.query, settings.channel)
                tidb = self._dialect.is_tidb
                self._marks.prepare(self.address, is_tidb=tidb, others=settings.ring)
        except UnknownServerError as error:
            self.close()
            raise DownstreamError(
                server_errors.VERSION_MISMATCH, f"{self.address}: {error}"
            ) from error
        except DownstreamError:
            self.close()
            raise
        connection.max_allowed_packet = int(variables["max_allowed_packet"])
        sockets: Any = connection
        sockets._read_timeout = sockets._write_timeout = settings.read_timeout_s

    def _check_session(self, token: str) -> None:
        """Check that a variable which was set in this session is still there.

        If it isn't, locks and transactions are lost in the same way.
        """
        ((found, number),) = self.query("SELECT @sluice_session, CONNECTION_ID()")
        self.number = int(number)
        _OPEN_SESSIONS.add(self)
        if found not in (token, token.encode()):
            raise DownstreamError(
                server_errors.UNFIT,
                f"{self.address}: what a statement sets in a session isn't there some statements"
                " later: a proxy in between shares connections among clients, so locks and"
                " transactions don't hold",
                "turn multiplexing (or transaction pooling) off for this user, or connect to the"
                " server itself",
            )

    def close(self) -> None:
        """End the session; an open transaction is rolled back by the server. Never raises."""
        if self._connection is not None:
            connection: Any = self._connection
            # before: another thread that is just reading from it sees why it ends
            self._connection = None
            if connection._sock is not None:
                with contextlib.suppress(OSError):
                    # A reader would hold the stream's lock until the server answers, and closing
                    # it would wait for that. Not by the method of a socket with TLS, which ends
                    # that before the connection.
                    socket.socket.shutdown(connection._sock, socket.SHUT_RDWR)
            connection._force_close()  # a farewell to a dead server would wait for its time-out

    def begin(self) -> None:
        """Start a transaction."""
        self.query("START TRANSACTION")

    def commit(self, channel: int | None = None) -> None:
        """Commit. After an error the outcome is unknown: only the checkpoint row shows it.

        With loopback control what was written is marked first, with `channel` or else the
        settings' own.
        """
        if self._has_written and self._marks is not None:
            # Last, so that other sessions of the channel hardly wait for the row.
            self._marks.mark(channel, self.number % MARK_ROWS)
        self.query("COMMIT")
        self._has_written = False

    def rollback(self) -> None:
        """Roll back."""
        self.query("ROLLBACK")
        self._has_written = False

    def query(
        self, statement: str | bytes, args: Sequence[object] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement, return its rows. `args` fill ``%s`` places, as literals."""
        return self._run(statement, args)[1]

    def blocks(self, statement: str) -> Iterator[RowBlock]:
        """Yield the rows of a large result as they come, values as the server prints them.

        A caller that doesn't read to the end closes the session.
        """
        # with Arrow, which a session that reads a checkpoint does without
        from sluice.etl.changes.formats.mysql_result_stream import result_blocks

        connection = self._open()
        with self._translating(connection):
            yield from result_blocks(connection, statement, self._settings.read_timeout_s)

    def execute(self, statement: str | bytes) -> int:
        """Run one statement that writes, return the number of affected rows."""
        self._begin_write()
        return self._run(statement, None)[0]

    def _begin_write(self) -> None:
        if self.before_write is not None:
            self.before_write()
        self._has_written = True

    def warnings(self) -> list[tuple[str, int, str]]:
        """Return (level, code, message) of the last statement's warnings."""
        return [
            (str(level), int(code), str(message))
            for level, code, message in self.query(self.dialect.show_warnings)
        ]

    def load(
        self, target: str, layout: LoadLayout, payload: Any, *, strict: bool = True, also: str = ""
    ) -> LoadOutcome:
        """Write rows into `target`, a table's full name, quoted.

        `payload` (bytes-like) and `layout` as `sluice.etl.changes.formats.load_data` makes them.
        Rows with the same keys are replaced. `strict` False: what doesn't fit is converted with a
        warning. `also`: an assignment to one more column, of what the others have been given; only
        where the server loads in transactions.
        """
        if not strict:
            self.query(f"SET SESSION sql_mode='{_session_setup.LENIENT_SQL_MODE}'")
            try:
                return self.load(target, layout, payload, also=also)
            finally:
                with contextlib.suppress(DownstreamError):  # a lost connection has no mode any more
                    self.query(f"SET SESSION sql_mode='{_session_setup.STRICT_SQL_MODE}'")
        self._begin_write()
        connection = self._open()
        if not self.dialect.supports_transactional_load:
            if also:
                raise ValueError("rows that are written as statements can't be computed with")
            return self._replace(connection, target, layout, payload)
        order = pipelined_load(LoadData(target, layout, payload), also=also)
        connection.offered = (order.name, payload)
        try:
            self._run(order.statement, None)
        finally:
            connection.offered = (b"", b"")
        result = connection._result
        message = result.message if result is not None else b""
        return self._outcome(message.decode() if isinstance(message, bytes) else str(message or ""))

    @property
    def is_pipelining(self) -> bool:
        """Return whether `execute_pipelined` may be used."""
        return (
            self.ahead.allowed
            and self.dialect.supports_pipelining
            and self._open().packet_bytes >= MIN_PACKET_BYTES
        )

    def execute_pipelined(
        self, orders: Sequence[bytes | LoadData | Query]
    ) -> list[StatementOutcome]:
        """Execute statements and loads in order, sending each before the one before is answered.

        At most MAX_PIPELINED of them, of 64 KiB each and some hundred KiB in all. Returns what
        each of them did, or its error; those behind one that was refused are executed all the
        same. Raises DownstreamError if the connection is lost; then nothing is pipelined for a
        while, see PipeliningState.
        """
        self._begin_write()
        connection = self._open()
        sent = [pipelined_statement(connection, each) for each in orders]
        return [
            self._statement_outcome(*each)
            for each in zip(orders, sent, self._execute_pipelined(sent), strict=True)
        ]

    def query_pipelined(
        self, statement: str, several: Sequence[Sequence[object]]
    ) -> list[list[tuple[Any, ...]] | DownstreamError]:
        """Return the rows of `query` for each of several `args`, pipelined; or the error."""
        answers = self._execute_pipelined(
            [query_statement(fill_placeholders(statement, args)) for args in several]
        )
        return [
            list(answer.rows) if answer.error is None else self._error(answer.error)
            for answer in answers
        ]

    def _execute_pipelined(self, orders: Sequence[PipelinedStatement]) -> list[StatementResult]:
        connection = self._open()
        try:
            with self._translating(connection):
                answers = execute_pipelined(connection, orders)
        except LoadRejected as refused:
            self.ahead.is_refused = True
            rejection = self._error(refused.error)
            raise DownstreamError(
                0, f"{rejection}; connecting again, to send statement by statement"
            ) from refused
        except DownstreamError:
            if self._connection is connection:  # else another thread has closed it
                self.ahead.lost()
            raise
        self.ahead.on_answered()
        return answers

    def _statement_outcome(
        self, asked: bytes | LoadData | Query, order: PipelinedStatement, answer: StatementResult
    ) -> StatementOutcome:
        if answer.error is not None:
            return self._error(answer.error)
        if isinstance(asked, bytes):
            return answer.affected
        if isinstance(asked, Query):
            return list(answer.rows)
        if not order.name:
            return LoadOutcome(-1, answer.affected, 0, answer.warnings)
        return self._outcome(answer.message.decode("utf-8", "replace"))

    def _outcome(self, message: str) -> LoadOutcome:
        match = _LOAD_MESSAGE.search(message)
        if match:
            return LoadOutcome(*(int(group) for group in match.groups()))
        raise DownstreamError(
            server_errors.UNFIT,
            f"{self.address}: LOAD DATA reported {message!r}, which doesn't show what it did",
        )

    def _replace(
        self, connection: DownstreamConnection, target: str, layout: LoadLayout, payload: Any
    ) -> LoadOutcome:
        """Write rows as REPLACE statements, which report rows written and removed only together."""
        if connection.server_status & NO_ESCAPES:
            raise DownstreamError(
                server_errors.UNFIT,
                f"{self.address}: the session has NO_BACKSLASH_ESCAPES, rows would arrive as"
                " others",
            )
        affected = warnings = 0
        for statement in replace_statements(target, layout, payload):
            affected += self._run(statement, None)[0]
            result = connection._result
            warnings += result.warning_count if result is not None else 0
        return LoadOutcome(-1, affected, 0, warnings)

    def _open(self) -> DownstreamConnection:
        if self._connection is None:
            raise DownstreamError(server_errors.SERVER_GONE, f"{self.address}: not connected")
        return self._connection

    def _run(
        self, statement: str | bytes, args: Sequence[object] | None
    ) -> tuple[int, list[tuple[Any, ...]]]:
        connection = self._open()
        with self._translating(connection):
            if self.doubles_backslashes and isinstance(statement, str):
                statement = double_backslashes(statement)
            if args is not None and isinstance(statement, str):
                statement = fill_placeholders(statement, args)
            raw = (
                statement.encode("utf-8", "surrogateescape")
                if isinstance(statement, str)
                else statement
            )
            if (
                len(raw) >= connection.max_allowed_packet
            ):  # the server would end the connection, as if trying again could help
                raise pymysql.err.OperationalError(
                    server_errors.PACKET_TOO_LARGE,
                    f"a statement of {len(raw)} bytes, max_allowed_packet is"
                    f" {connection.max_allowed_packet}",
                )
            began = time.perf_counter()
            affected = connection.query(raw)
            took_s = time.perf_counter() - began
            self.round_trip_s = min(self.round_trip_s or took_s, took_s)
            result = connection._result
            return affected, list(result.rows or ()) if result is not None else []

    @contextlib.contextmanager
    def _translating(self, connection: DownstreamConnection) -> Iterator[None]:
        """Raise PyMySQL's errors, and those of a session that was closed, as DownstreamError."""
        try:
            yield
        except (pymysql.err.MySQLError, OSError) as error:
            raise self._error(error) from error
        except (
            AttributeError,
            TypeError,
            ValueError,
        ) as error:  # PyMySQL's, of a socket and a file that are gone
            if self._connection is connection:
                raise
            raise DownstreamError(
                server_errors.SERVER_GONE, f"{self.address}: the session was closed"
            ) from error

    def _error(self, error: BaseException) -> DownstreamError:
        return downstream_error(error, self.address)
