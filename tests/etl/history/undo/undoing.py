"""Transactions taken back in a database, as a person does it in TiDB: by the script, statement by
statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.undo import (
    DryRun,
    PastChanges,
    TableUndoSql,
    dry_run,
    invert_changes,
    read_transaction,
    script,
)
from sluice.etl.settings import Settings
from tests.etl.mariadb_fixture import MariaDBServer

State = dict[str, Counter[tuple[Any, ...]]]


def read(settings: Settings, commit_ts: int, *globs: str) -> tuple[PastChanges, list[TableUndoSql]]:
    """The transaction, and its opposite under the names that the replica has."""
    transaction = read_transaction(HistoryLog.open(settings), commit_ts, globs)
    return transaction, downstream_sql(settings, transaction)


def downstream_sql(settings: Settings, changes: PastChanges) -> list[TableUndoSql]:
    """The opposite of changes under the names that the replica has."""
    tables = []
    for table in changes.tables:
        goal = settings.routes.target(table.now.schema_name, table.now.name)
        named = replace(table.now, schema_name=goal.schema, name=goal.table)
        tables.append(TableUndoSql(invert_changes(table), named, exact_floats=False))
    return tables


def take_back(
    server: MariaDBServer, settings: Settings, commit_ts: int, *globs: str
) -> tuple[int, int]:
    """How many rows were taken back, and how many should have been.

    Committed only if they are the same.
    """
    return run_script(server, script(*read(settings, commit_ts, *globs)))


def run_script(server: MariaDBServer, lines: Iterable[bytes]) -> tuple[int, int]:
    """As `take_back`."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            for line in lines:
                # which is TiDB's alone
                if not line.startswith((b"--", b"SET SESSION allow_auto_random")):
                    cursor.execute(line)
            undone, expected = cursor.fetchall()[0]
            cursor.execute("COMMIT" if undone == expected else "ROLLBACK")
    finally:
        connection.close()
    return int(undone), int(expected)


def would_conflict(settings: Settings, commit_ts: int, *globs: str) -> DryRun:
    transaction = read_transaction(HistoryLog.open(settings), commit_ts, globs)
    return dry_run(settings, transaction, [invert_changes(table) for table in transaction.tables])


def state(server: MariaDBServer, tables: Iterable[str]) -> State:
    """Every row of tables (quoted names), as it is stored."""
    connection = server.connect(conv={}, use_unicode=False, init_command="SET time_zone='+00:00'")
    try:
        with connection.cursor() as cursor:
            found: State = {}
            for name in tables:
                cursor.execute(f"SELECT * FROM {name}")
                found[name] = Counter(cursor.fetchall())
            return found
    finally:
        connection.close()
