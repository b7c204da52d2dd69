"""Commit row changes as TiDB writes them: a Prewrite, a key in TiKV, a Commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.devstack.tidb.ddl_writer import Writer
from sluice.devstack.tidb.tidb_server import UpstreamState
from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import encode_int

__all__ = ["commit_rows"]


async def commit_rows(
    mutations: Sequence[Any], start_ts: int, writer: Writer, state: UpstreamState
) -> int:
    """Commit a transaction that began at `start_ts`; return its commit_ts.

    `mutations`: the binlog's, at least one. Raises PumpWriteError.
    """
    value = pb.binlog.PrewriteValue(
        schema_version=state.history.schema_version, mutations=mutations
    )
    key = b"t" + encode_int(mutations[0].table_id) + b"_r" + encode_int(start_ts)
    binlog = pb.binlog.Binlog(
        tp=pb.binlog.Prewrite, start_ts=start_ts, commit_ts=0, prewrite_key=key,
        prewrite_value=value.SerializeToString(), ddl_job_id=0, ddl_schema_state=0,
    )  # fmt: skip
    payload = binlog.SerializeToString()
    state.store.prewrite(key, start_ts)
    try:
        await writer.prewrite(start_ts, payload)
    except BaseException:
        state.store.rollback(key, start_ts)
        raise
    commit_ts = await state.oracle.take()
    state.store.commit(key, start_ts, commit_ts)
    state.commits.add(commit_ts)
    state.versions.follow(commit_ts, payload)
    binlog.ClearField("prewrite_value")
    binlog.tp, binlog.commit_ts = pb.binlog.Commit, commit_ts
    await writer.finish(start_ts, binlog.SerializeToString())
    return commit_ts
