"""Run the suites as a task of Airflow's."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sluice.etl.settings import Settings, pauses, read_target
from sluice.expectations.results import QualityResults, QualityRun
from sluice.expectations.run import QualityRequest, run_quality
from sluice.tidb import moments

__all__ = ["is_due", "look"]

log = logging.getLogger("sluice.quality")


def look(
    settings: Settings, asked: Mapping[str, Any], *, run_id: str, scheduled: bool
) -> dict[str, Any] | None:
    """Check what the form asks for (`on`, `suites`, `as_of`, `copy`).

    In a run that Airflow's clock began (`scheduled`), only if it is due. Returns the summary, None
    if nothing was checked. Raises QualityFailedError, and as `run_quality`.
    """
    del run_id
    if scheduled:
        if not is_due(settings):
            log.info(
                "not due: [quality] every is %r, hours %r",
                settings.quality.every,
                settings.quality.hours,
            )
            return None
        asked = {"on": settings.quality.on}
    done = run_quality(settings, _request_from_form(asked), _say)
    log.info("Data Docs: %s", done.index)
    done.check()
    return {"run": done.run, "suites": {suite.suite: suite.state for suite in done.suites}}


def is_due(settings: Settings, now_ms: int | None = None) -> bool:
    """Return whether `[quality] every` has passed since the last run, at an hour of `hours`."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if datetime.fromtimestamp(now / 1000, UTC).hour not in settings.quality.hours_utc:
        return False
    return pauses.is_due(QualityResults(settings).newest_ms(), settings.quality.every_ms, now)


def _request_from_form(asked: Mapping[str, Any]) -> QualityRequest:
    return QualityRequest(
        str(asked.get("on") or "downstream"),
        tuple(asked.get("suites") or ()),
        moments.parse_moment(asked["as_of"]) if asked.get("as_of") else 0,
        read_target(asked["copy"]) if asked.get("copy") else {},
    )


def _say(suite: QualityRun) -> None:
    level = {"passed": logging.INFO, "warned": logging.WARNING}.get(suite.state, logging.ERROR)
    log.log(
        level,
        "%s: %s, %d of %d not met",
        suite.suite,
        suite.state,
        suite.failed,
        suite.expectations,
    )
    for failure in suite.failures:
        log.log(level, "  %s %s: %s", failure.expectation, failure.about, failure.observed)
