"""An accident: `DELETE FROM table`, and the WHERE was forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sluice.devstack.tidb.ddl_writer import Writer
from sluice.devstack.tidb.row_commit import commit_rows
from sluice.devstack.tidb.tidb_server import UpstreamState
from sluice.tidb import pb
from sluice.tidb.rows import ROWID_NAME, encode_delete
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class CommittedDelete:
    """A committed DELETE; without rows nothing was committed."""

    commit_ts: int
    rows: int


async def delete_everything(
    table: Table, writer: Writer, state: UpstreamState, happened: int | None
) -> CommittedDelete:
    """Remove every row of `table` in one transaction, as TiDB writes it.

    Nothing else may be writing to the table. `happened` (TSO): what the recording holds beyond it
    has not been played. Raises PumpWriteError, and SQLError for a table whose rows the stand-in
    doesn't know.
    """
    start_ts = await state.oracle.take()
    rows = await asyncio.to_thread(
        _encoded, table, state, start_ts if happened is None else happened
    )
    if not rows:
        return CommittedDelete(0, 0)
    mutation = pb.binlog.TableMutation(
        table_id=table.id, deleted_rows=rows, sequence=[pb.binlog.DeleteRow] * len(rows)
    )
    commit_ts = await commit_rows([mutation], start_ts, writer, state)
    return CommittedDelete(commit_ts, len(rows))


def _encoded(table: Table, state: UpstreamState, ts: int) -> list[bytes]:
    names = [column.name for column in table.stored_columns] + [ROWID_NAME] * (
        table.handle_kind == "heap"
    )
    return [
        encode_delete(table, dict(zip(names, row, strict=True)))
        for row in state.versions.rows(table, ts)
    ]
