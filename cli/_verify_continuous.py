"""`sluice verify --continuous`."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING

import click

from cli._sizes import size

if TYPE_CHECKING:
    from etl.settings import Settings
    from etl.verify.continuous import ContinuousSummary


def run_continuously(settings: Settings, seconds: float | None, *, as_json: bool) -> int:
    """Verify until somebody ends it, and say what came of it; the exit code: 0 if no row is known to differ."""
    from etl.verify.continuous import run_continuous

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    summary = run_continuous(settings, seconds, stop)
    click.echo(json.dumps(summary.to_json(), indent=2) if as_json else _text(summary))
    return int(bool(summary.open_rows))


def _text(summary: ContinuousSummary) -> str:
    told = [f"{one.table}: {dict(one.key)} {one.kind}" for one in summary.differences]
    told += [f"note     {note}" for note in summary.notes]
    found = f"{summary.open_rows:,} rows differ" if summary.open_rows else "no row is known to differ"
    return "\n".join([
        *told,
        f"{found}: {summary.rows:,} rows, {size(summary.bytes)} compared at {summary.passes:,} checkpoints in"
        f" {summary.seconds:,.1f} s, {summary.keys:,} of them changed a while before",
    ])  # fmt: skip
