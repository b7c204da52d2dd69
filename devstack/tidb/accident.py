"""An accident: `DELETE FROM table`, and the WHERE was forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sluice.devstack.tidb.ddl_writer import Writer
from sluice.devstack.tidb.tidb_server import UpstreamState
from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import encode_int
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
    value = pb.binlog.PrewriteValue(
        schema_version=state.history.schema_version, mutations=[mutation]
    )
    key = b"t" + encode_int(table.id) + b"_r" + encode_int(start_ts)
    binlog = pb.binlog.Binlog(
        tp=pb.binlog.Prewrite, start_ts=start_ts, commit_ts=0, prewrite_key=key,
        prewrite_value=value.SerializeToString(), ddl_job_id=0, ddl_schema_state=0,
    )  # fmt: skip
    payload = binlog.SerializeToString()
    state.store.prewrite(key, start_ts)
    await writer.prewrite(start_ts, payload)
    commit_ts = await state.oracle.take()
    state.store.commit(key, start_ts, commit_ts)
    state.commits.add(commit_ts)
    state.versions.follow(commit_ts, payload)
    binlog.ClearField("prewrite_value")
    binlog.tp, binlog.commit_ts = pb.binlog.Commit, commit_ts
    await writer.finish(start_ts, binlog.SerializeToString())
    return CommittedDelete(commit_ts, len(rows))


def _encoded(table: Table, state: UpstreamState, ts: int) -> list[bytes]:
    names = [column.name for column in table.stored_columns] + [ROWID_NAME] * (
        table.handle_kind == "heap"
    )
    return [
        encode_delete(table, dict(zip(names, row, strict=True)))
        for row in state.versions.rows(table, ts)
    ]
