"""DAG ``replicate``: land windows in the relay log and apply them downstream, continuously.

One run at a time. In a run `land` and `apply` work side by side, joined only by the relay log, and each drains windows
until the run's time is up; then the next run begins. Killed tasks are started again at once: both continue from what
is durable.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

RETRIES = {"retries": 1_000, "retry_delay": timedelta(seconds=1), "max_retry_delay": timedelta(seconds=30)}


@dag(
    schedule="@continuous",
    start_date=datetime(
        2024, 1, 1, tzinfo=UTC
    ),  # without one, Airflow gives every run the first run's date and skips it
    max_active_runs=1,
    catchup=False,
    is_paused_upon_creation=False,
    tags=["sluice"],
    params={
        "run_seconds": Param(
            300, type="integer", minimum=1, description="How long one run drains windows before the next begins."
        ),
        "mode": Param(
            "as in sluice.toml",
            type="string",
            enum=["as in sluice.toml", "atomic", "parallel"],
            description="How this run applies.",
        ),
        "until": Param(
            None,
            type=["null", "string"],
            description="Where this run stops applying: a TSO or a time (UTC), exactly; empty: nowhere. "
            "To have later runs stop there too, use the DAG `operate`.",
        ),
    },
    default_args=RETRIES,
    doc_md=__doc__,
)
def replicate() -> None:
    @task
    def land(params: dict[str, Any] | None = None) -> dict[str, Any]:
        from etl import load_settings, run_land

        return run_land(load_settings(), run_seconds=(params or {})["run_seconds"]).as_dict()

    @task
    def apply(params: dict[str, Any] | None = None) -> dict[str, Any]:
        from etl import load_settings, operate, run_apply

        wanted = params or {}
        until_ts = operate.parse_moment(wanted["until"]) if wanted["until"] else None
        settings = operate.for_run(load_settings(), wanted["mode"])
        return run_apply(settings, run_seconds=wanted["run_seconds"], until_ts=until_ts).as_dict()

    land()
    apply()


replicate()
