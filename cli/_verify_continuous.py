"""`sluice verify --continuous`."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING

import click

from sluice.etl.display_units import counted, format_size

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.etl.verify import Difference
    from sluice.etl.verify.continuous import ContinuousSummary

_LINE_INTERVAL_S = 10.0
"""Interval of printed counts: short enough to see progress, long enough for a log of days.
"""


def run_continuously(settings: Settings, seconds: float | None, *, as_json: bool) -> int:
    """Verify until the process is stopped, and print a summary.

    Return the exit code: 0 if no row is known to differ.
    """
    from sluice.etl.verify.continuous import run_continuous

    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        summary = run_continuous(settings, seconds, stop, _Lines())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    click.echo(json.dumps(summary.to_json(), indent=2) if as_json else _text(summary))
    return int(bool(summary.open_rows))


class _Lines:
    """Print to standard error: counts every 10 s, and each difference at once."""

    def __init__(self) -> None:
        self._printed_s = -_LINE_INTERVAL_S
        self._differences = 0

    def __call__(self, summary: ContinuousSummary) -> None:
        for one in summary.differences[self._differences :]:
            click.echo(_difference(one), err=True)
        self._differences = len(summary.differences)
        if summary.seconds - self._printed_s >= _LINE_INTERVAL_S:
            self._printed_s = summary.seconds
            click.echo(_total(summary), err=True)


def _text(summary: ContinuousSummary) -> str:
    lines = [_difference(one) for one in summary.differences]
    lines += [f"note     {note}" for note in summary.notes]
    return "\n".join([*lines, _total(summary)])


def _difference(one: Difference) -> str:
    return f"{one.table}: {dict(one.key)} {one.kind}"


def _total(summary: ContinuousSummary) -> str:
    found = (
        counted(summary.open_rows, "row differs", "rows differ")
        if summary.open_rows
        else "no row is known to differ"
    )
    return (
        f"{found}: {counted(summary.rows, 'row')}, {format_size(summary.bytes)} compared at"
        f" {summary.passes:,} checkpoints in {summary.seconds:,.1f} s, {summary.keys:,} of them"
        " changed a while before"
    )
