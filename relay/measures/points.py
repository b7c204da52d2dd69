"""The lag and pace of each source, as series that are thinned out with age.

Steps of ten seconds over the last hour, of five minutes over the last day, of half an hour over
the last week.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DAY", "HOUR", "WEEK", "LagPoint", "LagSeries", "LagStep", "merge_series"]


@dataclass(frozen=True, slots=True)
class LagSeries:
    """Points at most `span_ms` old, one for each `step_ms`."""

    step_ms: int
    span_ms: int


HOUR = LagSeries(10_000, 3_600_000)
DAY = LagSeries(300_000, 86_400_000)
WEEK = LagSeries(1_800_000, 604_800_000)


class LagStep(NamedTuple):
    """A source's work in the milliseconds before `at_ms` (Unix ms).

    `lag_ms` is the longest lag; `errors` counts failures, retried or not. The last three fields are
    0 in steps that were written before these were counted.
    """

    at_ms: int
    span_ms: int
    lag_ms: float
    changes: int
    transactions: int
    windows: int = 0
    errors: int = 0
    ddls: int = 0


@dataclass(frozen=True, slots=True)
class LagPoint:
    """Replication's lag and pace at one time (Unix ms).

    `lag_ms`: of the downstream behind the clock; `land_lag_ms`: of the relay log; None where
    nothing is known. `rows_per_s`: row changes applied; `windows_per_s`: landed; `ddls`: landed in
    the step that ends here; `errors`: of both in that step.
    """

    at_ms: int
    lag_ms: float | None
    land_lag_ms: float | None
    rows_per_s: float
    transactions_per_s: float
    windows_per_s: float = 0.0
    errors: int = 0
    ddls: int = 0


def append_step(steps: Iterable[LagStep], new: LagStep, series: LagSeries) -> tuple[LagStep, ...]:
    """Append a step to a series, and remove those older than the series' span."""
    kept = [step for step in steps if step.at_ms > new.at_ms - series.span_ms]
    if kept and kept[-1].at_ms // series.step_ms >= new.at_ms // series.step_ms:
        last = kept.pop()
        new = LagStep(
            max(last.at_ms, new.at_ms),
            last.span_ms + new.span_ms,
            max(last.lag_ms, new.lag_ms),
            last.changes + new.changes,
            last.transactions + new.transactions,
            last.windows + new.windows,
            last.errors + new.errors,
            last.ddls + new.ddls,
        )
    return (*kept, new)


def merge_series(
    land: Iterable[LagStep], applied: Iterable[LagStep], series: LagSeries
) -> list[LagPoint]:
    """Return a point for each step of the series in which either source has one, ascending."""
    landed, wrote = _by_step(land, series), _by_step(applied, series)
    return [
        LagPoint(
            (number + 1) * series.step_ms,
            wrote[number].lag_ms if number in wrote else None,
            landed[number].lag_ms if number in landed else None,
            _rate(wrote, number, "changes"),
            _rate(wrote, number, "transactions"),
            _rate(landed, number, "windows"),
            sum(steps[number].errors for steps in (landed, wrote) if number in steps),
            landed[number].ddls if number in landed else 0,
        )
        for number in sorted(landed.keys() | wrote.keys())
    ]


def _by_step(steps: Iterable[LagStep], series: LagSeries) -> dict[int, LagStep]:
    return {step.at_ms // series.step_ms: step for step in steps}


def _rate(steps: Mapping[int, LagStep], number: int, what: str) -> float:
    step = steps.get(number)
    return (
        round(1000 * getattr(step, what) / step.span_ms, 1)
        if step is not None and step.span_ms
        else 0.0
    )
