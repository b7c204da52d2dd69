"""Check that a table downstream has the upstream's rows: a verify job for one table."""

from __future__ import annotations

from sluice.etl.settings import Settings
from sluice.etl.verify import Difference, VerifyRequest, create_verify, run_verify
from sluice.expectations.lake_dataset import upstream_names
from sluice.expectations.suite import QualityError
from sluice.relay.jobs import DONE, Runner
from sluice.tidb import tso

__all__ = ["compared_with_upstream"]

_REQUESTER = "sluice quality"


def compared_with_upstream(
    settings: Settings, table: str, how: str
) -> tuple[bool, str, list[dict[str, str]]]:
    """Return whether a downstream table equals its upstream, the finding, and rows that differ.

    The table is ``schema.table`` downstream, the finding in words. `how`: as in `VerifyRequest`.
    Raises QualityError if it couldn't be compared, and as `run_verify`.
    """
    job = create_verify(settings, VerifyRequest((_upstream(settings, table),), how), _REQUESTER)
    done = run_verify(settings, job.id, Runner(_REQUESTER))
    problems = [one.problem for one in done.tables if one.problem]
    if done.state != DONE or not done.tables or problems:
        raise QualityError(
            f"{table} wasn't compared, job {done.job} is {done.state}:"
            f" {'; '.join(problems) or 'no table is that'}",
            hint=f"`sluice verify {table}` shows more",
        )
    if done.equal:
        return True, f"{done.rows:,} rows, as of {tso.text(done.ts)} (job {done.job})", []
    examples = [_row(difference) for one in done.tables for difference in one.examples]
    return (
        False,
        f"{done.differences:,} rows differ as of {tso.text(done.ts)} (job {done.job})",
        examples,
    )


def _upstream(settings: Settings, table: str) -> str:
    """Return its name upstream."""
    last = settings.open_relay().last() if settings.routes.rules else None
    return table if last is None else upstream_names(settings, last.hi, {table})[table]


def _row(difference: Difference) -> dict[str, str]:
    key = ", ".join(f"{name} = {value}" for name, value in difference.key.items())
    return {
        "row": key,
        "": difference.kind,
        "columns": ", ".join(difference.columns),
        "last": difference.binlog,
    }
