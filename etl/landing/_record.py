"""Make the record of a window: once it is committed, the window is landed."""

from __future__ import annotations

import time

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._job_queue import FinishedPlan
from sluice.etl.landing._report import LandedWindow
from sluice.relay import WindowRecord
from sluice.tidb import tso


def record_of(
    landed: FinishedPlan, schema: RecordedSchema, cluster_id: int, token: str
) -> WindowRecord:
    """Return the record to commit; `token` is the claim's."""
    plan, result = landed.plan, landed.result
    window = WindowRecord(
        lo=plan.lo,
        hi=plan.hi,
        cluster_id=cluster_id,
        token=token,
        landed_ms=time.time_ns() // 1_000_000,
        transactions=result.transactions,
        changes=sum(part.rows for part in result.parts),
        schema_version=schema.schema_version,
        parts=result.parts,
        timings_ms={name: round(ms, 2) for name, ms in landed.stages_ms.items()},
        skipped=result.left_out,
        is_captured=result.is_captured,
    )
    return schema.write_to(window)


def report_of(landed: FinishedPlan, record: WindowRecord) -> LandedWindow:
    """Return the figures of a committed window."""
    plan, stages = landed.plan, landed.stages_ms
    lag_ms = tso.ms_between(plan.hi, plan.fresh_ts) + sum(
        stages[name] for name in ("job", "resolve", "commit")
    )
    return LandedWindow(
        plan.lo, plan.hi, record.transactions, record.changes, len(record.ddls),
        sum(part.bytes for part in record.parts), stages, lag_ms,
    )  # fmt: skip
