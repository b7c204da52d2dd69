"""Continuous verification as a task of Airflow's."""

from __future__ import annotations

import logging
from typing import Any

from sluice.etl.display_units import counted
from sluice.etl.settings import Settings
from sluice.etl.verify.continuous import run_continuous
from sluice.etl.verify.errors import VerifyError

__all__ = ["RUN_S", "run_continuous_task"]

log = logging.getLogger("sluice.verify")

RUN_S = 540.0
"""A run's duration: it is over before Airflow's clock begins the next one."""


def run_continuous_task(settings: Settings, run_seconds: float) -> dict[str, Any]:
    """Verify for `run_seconds`; return what was done.

    Nothing without a TiDB to read. Raises VerifyError while rows are known to differ, and as
    `run_continuous`.
    """
    if not settings.upstream.sql_host or settings.downstream.type != "mysql":
        log.info(
            "nothing to compare with: [upstream] sql-host names the TiDB to read, and a database"
            " can be read back"
        )
        return {}
    summary = run_continuous(settings, run_seconds)
    for note in summary.notes:
        log.warning("%s", note)
    if summary.open_rows:
        named = "; ".join(
            f"{one.table} {dict(one.key)}: {one.kind}" for one in summary.differences[:10]
        )
        raise VerifyError(
            counted(summary.open_rows, "row differs", "rows differ")
            + (f": {named}" if named else ""),
            hint=(
                "`sluice verify` lists all of them, `sluice verify --repair --apply` makes them"
                " right"
            ),
        )
    return summary.to_json()
