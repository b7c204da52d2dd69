"""Changes and windows made up for tests of the relay log."""

from __future__ import annotations

import pyarrow as pa

from sluice.relay import PART_SCHEMA, RelayLog, WindowRecord

HOUR = 3_600_000 << 18
BASE = 1_795_251_600_000 << 18  # 2026-11-21T09:00:00Z


def batch(keys, table_id=7, row=b"row"):
    """A batch of changes; keys are (commit_ts, position)."""
    size = len(keys)
    return pa.record_batch(
        [
            pa.array([commit for commit, _ in keys], pa.int64()),
            pa.array([commit - 1 for commit, _ in keys], pa.int64()),
            pa.array([position for _, position in keys], pa.int32()),
            pa.array([table_id] * size, pa.int64()),
            pa.array([1] * size, pa.int64()),
            pa.array([0] * size, pa.int8()),
            pa.array([b"%s %d/%d" % (row, *key) for key in keys], pa.large_binary()),
        ],
        schema=PART_SCHEMA,
    )


def window(lo, hi, parts=(), **more):
    fields = {
        "cluster_id": 1,
        "token": "t",
        "landed_ms": 0,
        "transactions": 0,
        "changes": 0,
        "schema_version": 3,
    } | more
    return WindowRecord(lo=lo, hi=hi, parts=tuple(parts), **fields)


def land(log: RelayLog, lo: int, hi: int, *commits: int, token="t", n=0):
    """Write and commit a window with one change a commit."""
    part = log.write_part(
        lo, hi, token, n, [batch([(commit, 0) for commit in commits])] if commits else []
    )
    made = window(lo, hi, [part] if part else [], transactions=len(commits), changes=len(commits))
    log.commit(made)
    return made
