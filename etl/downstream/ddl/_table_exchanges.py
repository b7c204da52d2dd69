"""DDL by which tables, or partitions, take the place of one another."""

from __future__ import annotations

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.ddl_partitions import exchanged_partition, rows_of_partitions
from sluice.etl.changes.formats.sql_text import columns_text, quote_name, quote_table
from sluice.etl.changes.rules import with_stored_mark
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._state import actual_columns, actual_partitions
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.partitions import partition_ids
from sluice.tidb.schema import Table

_NO_SUCH_TABLE = {server_errors.UNKNOWN_TABLE, server_errors.NO_SUCH_TABLE}


def exchange_partition(session: MySQLSession, ddl: DdlJob) -> None:
    """Exchange a partition by the server's EXCHANGE PARTITION.

    Raises ValueError if the partition is unknown, DownstreamError.
    """
    partitioned, ordinary, place = _exchange_parts(ddl)
    session.execute(
        f"ALTER TABLE {quote_table(partitioned)} EXCHANGE PARTITION {place} WITH TABLE"
        f" {quote_table(ordinary)} WITHOUT VALIDATION"
    )


def swaps_rows(session: MySQLSession, ddl: DdlJob) -> bool:
    """Return whether the server can't exchange a partition itself. Raises as `swap_rows`."""
    if not session.dialect.exchanges_partitions:
        return True
    return not actual_partitions(session, _exchange_parts(ddl)[0])


def swap_rows(session: MySQLSession, ddl: DdlJob) -> None:
    """Exchange a partition row by row, in a transaction.

    MariaDB's EXCHANGE PARTITION (10.11.19) never ends when the ordinary table holds rows, and a
    table may be without its partitions downstream. Raises as `exchange_partition`.
    """
    partitioned, ordinary, place = _exchange_parts(ddl)
    computed_here = {
        folded(column.name) for column in actual_columns(session, ordinary) if column.generated
    }
    stored = with_stored_mark(ordinary).stored_columns
    names = columns_text([column for column in stored if folded(column.name) not in computed_here])
    partition = (
        f"{quote_table(partitioned)} PARTITION ({place})"
        if actual_partitions(session, partitioned)
        else f"{quote_table(partitioned)} WHERE {_exchanged_rows(ddl, partitioned)}"
    )
    kept = f"{quote_name(ordinary.schema_name)}.{quote_name('sluice_exchange')}"
    session.execute(f"CREATE TEMPORARY TABLE {kept} AS SELECT {names} FROM {partition}")
    session.execute(f"DELETE FROM {partition}")
    session.execute(
        f"INSERT INTO {quote_table(partitioned)} ({names}) SELECT {names} FROM"
        f" {quote_table(ordinary)}"
    )
    session.execute(f"DELETE FROM {quote_table(ordinary)}")
    session.execute(f"INSERT INTO {quote_table(ordinary)} ({names}) SELECT {names} FROM {kept}")
    session.execute(f"DROP TEMPORARY TABLE {kept}")


def _exchanged_rows(ddl: DdlJob, partitioned: Table) -> str:
    """Return a condition for the rows of the partition. Raises ValueError if SQL has none."""
    known = partition_ids(ddl.before.get(partitioned.id) or partitioned)
    return rows_of_partitions(partitioned, partition_ids(partitioned).keys() - known.keys())


def _exchange_parts(ddl: DdlJob) -> tuple[Table, Table, str]:
    """Return the partitioned table, the ordinary one, the partition."""
    tables = [table for table in ddl.effect.tables.values() if table is not None]
    partitioned, ordinary = (
        next(t for t in tables if bool(t.partition) is want) for want in (True, False)
    )
    was = ddl.before.get(partitioned.id)
    return partitioned, ordinary, exchanged_partition(was or partitioned, partitioned)


def rename_tables(session: MySQLSession, ddl: DdlJob) -> list[str]:
    """Rename one table or several in one statement; return warnings.

    Raises ValueError if a table's earlier name is unknown, DownstreamError.
    """
    before, after = ddl.before, ddl.effect.tables
    pairs = [(before.get(i), table) for i, table in after.items() if table is not None]
    if not pairs or any(old is None for old, _ in pairs):
        raise ValueError("it renames a table of which the relay log doesn't have the former name")
    moves = [
        (quote_table(old), quote_table(new), new)
        for old, new in pairs
        if old and quote_table(old) != quote_table(new)
    ]
    if {source for source, _, _ in moves} & {goal for _, goal, _ in moves}:
        # Names are handed on in a ring: everything steps aside first. One statement, so no reader
        # sees the middle.
        aside = [
            f"{quote_name(new.schema_name)}.{quote_name(f'sluice_rename_{new.id}')}"
            for _, _, new in moves
        ]
        renames = [(source, place) for (source, _, _), place in zip(moves, aside)]
        renames += [(place, goal) for (_, goal, _), place in zip(moves, aside)]
    else:
        renames = [(source, goal) for source, goal, _ in moves]
    if not renames:
        return []
    try:
        session.execute(
            f"RENAME TABLE {', '.join(f'{source} TO {goal}' for source, goal in renames)}"
        )
    except DownstreamError as error:
        if error.code not in _NO_SUCH_TABLE or any(new.is_base_table for _, new in pairs):
            raise
        return [f"not renamed, as it was left out before: {error.message}"]
    return []
