"""Find tables that no DDL job has made: TiDB makes such tables when it restores or imports."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from sluice.errors import SluiceError
from sluice.etl.landing._early_rows import free_before
from sluice.etl.landing._job import TableSpan
from sluice.etl.landing._window_rows import WindowRows
from sluice.tidb import TiKVError
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.history import SchemaHistory
from sluice.tidb.schema import STATE_PUBLIC, Table
from sluice.tidb.table_name import argument
from sluice.tidb.tikv.meta import find_table_by_id

if TYPE_CHECKING:
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.land")


class UnknownTableError(SluiceError):
    """Rows belong to a table that no DDL job up to their commit has made.

    Names table id and commit_ts.
    """

    hint = "leave the transaction out: `sluice txn skip`"


class TablesWithoutDdl:
    """Add tables to the schema that have rows in a window and no DDL job."""

    def __init__(self, pd: PDClient, tikv: TiKVClient) -> None:
        self._pd = pd
        self._tikv = tikv

    def add(  # noqa: PLR0913 what `check_known` takes, and the rows
        self,
        history: SchemaHistory,
        spans: Mapping[int, TableSpan],
        known: Collection[int],
        born: dict[int, int],
        skips: Collection[int],
        rows: WindowRows,
    ) -> list[DdlJob]:
        """Return a CREATE TABLE for each table with rows that no job has made, but TiKV has.

        `known`, `born`, `skips`: see `check_known`. `history` and `born` get the tables.
        """
        made = []
        for table_id, span in spans.items():
            if table_id in known or table_id in born or table_id in history.moved:
                continue
            if span.first_commit_ts in skips or table_id in history.tables:
                continue
            table = self._table_in_tikv(table_id, span.first_commit_ts)
            if table is None:
                continue
            log.warning(
                "no DDL job has made %s (table id %d), it is taken as TiKV has it. Rows that came"
                " without a binlog are missing downstream: sluice backfill --table %s",
                table.full_name,
                table_id,
                argument(table.full_name),
            )
            history.found(table)
            born[table_id] = commit_ts = free_before(span.first_commit_ts, rows.commits())
            made.append(
                DdlJob(
                    commit_ts,
                    commit_ts,
                    0,
                    STATE_PUBLIC,
                    f"CREATE TABLE {table.full_name}",
                    type=Action.CREATE_TABLE,
                    schema_name=table.schema_name,
                    table_name=table.name,
                    effect=DdlEffect({}, {table_id: history.tables[table_id]}),
                )
            )
        return made

    def _table_in_tikv(self, table_id: int, ts: int) -> Table | None:
        """Return a table as of a commit_ts, or as it is now if TiKV has collected that.

        None without such a table.
        """
        try:
            found = find_table_by_id(self._tikv, table_id, ts)
        except TiKVError:
            found = find_table_by_id(self._tikv, table_id, self._pd.tso())
        if found is None:
            return None
        schema, info = found
        return Table.from_tidb(info, int(schema["id"]), str(schema["db_name"]["O"]))


def check_known(
    history: SchemaHistory,
    spans: Mapping[int, TableSpan],
    known: Collection[int],
    born: Mapping[int, int],
    skips: Collection[int],
) -> None:
    """Raise UnknownTableError for rows of a table that no DDL before them has made.

    `known`: ids of tables that exist before the window, or were truncated. `born`: by id the
    commit_ts at which the window's DDL makes a table. Rows of a table that begin in a transaction
    at `skips` (TSOs) won't be applied.
    """
    for table_id, span in spans.items():
        if (
            table_id in known
            or table_id in history.moved
            or born.get(table_id, span.first_commit_ts) < span.first_commit_ts
            or span.first_commit_ts in skips
        ):
            continue
        raise UnknownTableError(
            f"{span.rows} changes from commit_ts {span.first_commit_ts} on are of table id"
            f" {table_id}, which no DDL job up to schema version {history.schema_version} has made",
            hint=(
                "if TiKV's DDL history is incomplete, start with an empty relay log from a"
                " checkpoint after these commits; if they aren't wanted, leave the transaction"
                f" out: `sluice txn skip {span.first_commit_ts}`"
            ),
        )
