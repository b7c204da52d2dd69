"""Run the script in TiDB, the upstream: all rows in one transaction, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import pymysql

from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.history.errors import UndoError

_CONNECT_TIMEOUT_S = 10
_STATEMENT_TIMEOUT_S = 600


def apply_script(address: TidbAddress, lines: Iterable[bytes]) -> int:
    """Run the lines of `script`; return how many rows were taken back.

    It commits only if every row was still as the changes had left it. Raises UndoError otherwise,
    after a rollback, and for what TiDB refuses; CopyError for an address that can't be used.
    """
    try:
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password(),
            ssl=address.tls(),
            charset="utf8mb4",
            autocommit=False,
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_STATEMENT_TIMEOUT_S,
            write_timeout=_STATEMENT_TIMEOUT_S,
        )
    except (pymysql.MySQLError, OSError) as error:
        raise UndoError(
            f"{address.user}@{address.shown}: {error}",
            hint="see [upstream] sql-host, --user and --password-env",
        ) from error
    with closing(connection), connection.cursor() as cursor:
        try:
            for line in lines:
                if not line.startswith(b"--"):
                    cursor.execute(line)  # type: ignore[call-overload] # bytes, as rows are
            ((undone, expected),) = cursor.fetchall()  # what the last statement counts
        except (pymysql.MySQLError, OSError) as error:
            raise UndoError(
                f"{address.user}@{address.shown}: {error}; nothing was changed",
                hint="`sluice undo --dry-run` with the same options shows what prevents it,"
                " --leave-conflicts takes back all others",
            ) from error
        if int(undone) != int(expected):
            connection.rollback()
            raise UndoError(
                f"{undone} of {expected} rows are still as these changes left them: nothing was"
                " changed",
                hint=(
                    "`sluice undo --dry-run` with the same options names the rows that were changed"
                    " since, --leave-conflicts takes back all others"
                ),
            )
        try:
            connection.commit()
        except (pymysql.MySQLError, OSError) as error:
            raise UndoError(
                f"{address.user}@{address.shown}: whether COMMIT succeeded is unknown: {error}",
                hint=(
                    "look at a row, or run the same command again: what is taken back already is a"
                    " conflict then, and nothing changes"
                ),
            ) from error
    return int(undone)
