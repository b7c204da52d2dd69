"""Read rows of a live TiDB over a session, as of one timestamp."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pymysql

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.mysql_result_stream import result_blocks
from sluice.etl.changes.formats.mysql_rows import RowBlock
from sluice.etl.changes.formats.sql_text import fill_placeholders, quote_table, quote_text
from sluice.etl.copy.block_rows import batch_of, select_statement
from sluice.etl.copy.errors import CopyError
from sluice.etl.settings.database_connection import sent_password
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.sql_login import LoginConnection, sql_tls
from sluice.relay.json_codec import JsonDocument
from sluice.tidb.schema import Table

if TYPE_CHECKING:
    from sluice.etl.settings import Upstream
_READ_TIMEOUT_S = 600
_UNREAD_S = 3600
"""Time for which the server keeps a result that waits for the downstream."""
_SETTINGS = (
    "time_zone = '+00:00'",
    "sql_mode = ''",
    f"net_write_timeout = {_UNREAD_S}",
    "max_execution_time = 0",
    "tidb_isolation_read_engines = 'tikv'",
)


@dataclass(frozen=True, slots=True)
class TidbAddress(JsonDocument):
    """The address at which TiDB serves SQL, and the user who reads there.

    `password_env`: the environment variable that holds the password, on every machine that reads.
    `password_connection`: without it, the Airflow connection with the password, which Spark's
    workers are sent.
    Files of TLS are under the same paths everywhere.
    """

    host: str
    port: int = 4000
    user: str = "root"
    password_env: str = ""
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    ssl_verify_identity: bool = True
    password_connection: str = ""

    @classmethod
    def from_settings(cls, upstream: Upstream) -> Self:
        """Return TiDB's address in the settings. Raises CopyError if they have none."""
        if not upstream.sql_host:
            raise CopyError("[upstream] sql-host is missing: TiDB is read there")
        return cls(
            upstream.sql_host,
            upstream.sql_port,
            upstream.sql_user,
            upstream.sql_password_env,
            upstream.sql_ssl_ca,
            upstream.sql_ssl_cert,
            upstream.sql_ssl_key,
            upstream.sql_ssl_verify_identity,
            upstream.sql_connection,
        )

    @property
    def shown(self) -> str:
        """Return host:port."""
        return f"{self.host}:{self.port}"

    def password(self) -> str:
        """Return the password. Raises CopyError if it isn't where the settings say."""
        if not self.password_env:
            try:
                return sent_password(self.password_connection) if self.password_connection else ""
            except SettingsError as error:
                raise CopyError(str(error), transient=error.transient) from None
        try:
            return os.environ[self.password_env]
        except KeyError:
            raise CopyError(
                f"[upstream] sql-password-env: the environment has no variable {self.password_env};"
                " Spark's workers need it, too",
                hint=f"`export {self.password_env}=…` where Sluice runs, or name another variable"
                " there, none for a user without password",
            ) from None

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, None if the settings have none. Raises CopyError."""
        try:
            return sql_tls(
                self.ssl_ca, self.ssl_cert, self.ssl_key, verify_identity=self.ssl_verify_identity
            )
        except (OSError, ValueError) as error:
            raise CopyError(f"[upstream] sql-ssl-ca, sql-ssl-cert, sql-ssl-key: {error}") from None


class TidbSession:
    """One connection, which gives values as the bytes that TiDB prints.

    Every method raises CopyError.
    """

    def __init__(self, address: TidbAddress) -> None:
        self.address = address
        with self._translated_errors("connect"):
            self._connection = LoginConnection(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password(),
                ssl=address.tls(),
                charset="utf8mb4",
                conv={},
                use_unicode=False,
                autocommit=None,
                connect_timeout=10,
                read_timeout=_READ_TIMEOUT_S,
            )
        if not self._set(", ".join(_SETTINGS)):
            for setting in _SETTINGS:
                self._set(setting)

    @property
    def is_open(self) -> bool:
        """Return whether it was not closed from here."""
        return bool(self._connection.open)

    def is_alive(self) -> bool:
        """Return whether the server still answers; close the session if not."""
        try:
            self._connection.ping(reconnect=False)
        except (pymysql.MySQLError, OSError):
            self.close()
        return self.is_open

    def read_at(self, ts: int) -> None:
        """Read rows and schema as of `ts` (TSO) from now on."""
        self.query(fill_placeholders("SET @@tidb_snapshot = %s", (str(ts),)))

    def query(self, statement: str) -> list[tuple[bytes | None, ...]]:
        """Return all rows of a small result."""
        with self._translated_errors(statement), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def blocks(self, statement: str) -> Iterator[RowBlock]:
        """Yield the result as it comes from the server.

        A caller that doesn't read to its end closes the session.
        """
        with self._translated_errors(statement):
            yield from result_blocks(self._connection, statement, _READ_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection, in the middle of a result, too."""
        with contextlib.suppress(pymysql.MySQLError, OSError):
            self._connection._force_close()  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _set(self, settings: str) -> bool:
        """Set variables; return False if one isn't known, as in another version."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"SET {settings}")
        except pymysql.MySQLError as error:
            if error.args[0] != server_errors.UNKNOWN_VARIABLE:
                raise self._error(settings, error) from error
            return False
        return True

    @contextlib.contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (pymysql.MySQLError, OSError) as error:
            raise self._error(what, error) from error

    def _error(self, what: str, error: Exception) -> CopyError:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        where = f"TiDB at {self.address.shown}"
        if number in server_errors.OLDER_THAN_GC:
            return CopyError(
                f"{where} has dropped what the copy reads ({error.args[1]}): its GC was not held."
                " Start the copy over",
                hint="give this copy up (`sluice jobs cancel`), and start over",
            )
        lost = not isinstance(error, pymysql.MySQLError) or number in (0, 2003, 2006, 2013)
        return CopyError(
            f"{where}: {what[:200]}: {error}",
            transient=lost,
            hint=self._hint(number),
        )

    def _hint(self, number: int) -> str:
        if number == server_errors.ACCESS_DENIED:
            return "see [upstream] sql-user and sql-password-env"
        if number == server_errors.LACKS_PRIVILEGE:
            user = quote_text(self.address.user)
            return f"`GRANT SELECT, REPLICATION CLIENT ON *.* TO {user}@'%'` in TiDB"
        return ""


def read_rows(session: TidbSession, table: Table, condition: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `table` that a condition (SQL) takes, in no order.

    They have `table.columns`, in types and texts of `sluice.tidb.rows.arrow_schema`. Neither side
    holds more than a few megabytes of them. Raises CopyError.
    """
    columns = table.columns
    upstream = [replace(column, name=column.source_name) for column in columns]
    for block in session.blocks(select_statement(upstream, quote_table(table), condition)):
        try:
            yield batch_of(columns, block)
        except ValueError as error:
            raise CopyError(f"TiDB at {session.address.shown}: {table.full_name}.{error}") from None
