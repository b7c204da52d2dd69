"""sluice top: show how replication stands, live, in a terminal."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sluice.cli._garbage import collect_no_garbage
from sluice.cli._settings import config_option, pipelines_of
from sluice.cli._top_view import PipelineView, screen

if TYPE_CHECKING:
    from sluice.etl.operate.overview import Overview
    from sluice.etl.settings.pipelines import Pipelines
    from sluice.relay.measures import LagPoint

_KEYS = " n next pipeline   p previous   space stop and go on   q end "
_WIDTH, _HEIGHT = 80, 200
_ONCE_TIMEOUT_S, _POLL_TIMEOUT_S = 15.0, 0.8
_OVERVIEW_TIME_SHARE = 0.7
"""The share of the timeout that the overview may spend waiting for its sources."""


@click.command("top")
@click.option("--once", is_flag=True, help="Print every pipeline once, and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="With --once: one JSON object, keyed by pipeline name."
)
@click.option(
    "--every",
    type=click.FloatRange(0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@config_option
@click.pass_context
def command(
    ctx: click.Context, *, once: bool, as_json: bool, every: float, config: str | None
) -> None:
    """Show live every part of replication with its state, throughput and lag, and what blocks it.

    Without --config: the pipelines of SLUICE_CONFIG and SLUICE_PIPELINES, one at a time. Without a
    terminal it prints once.
    """
    is_live = not (once or as_json) and sys.stdin.isatty() and sys.stdout.isatty()
    if not is_live:
        collect_no_garbage(ctx)
    found = pipelines_of(ctx, config)
    looks = _Poller(found, _ONCE_TIMEOUT_S)
    if as_json:
        click.echo(json.dumps({name: _as_json(looks.at(name)) for name in found}, indent=1))
    elif is_live:
        _LiveScreen(found, every).run()
    else:
        for name in found:
            click.echo(screen(looks.at(name), _width(), _HEIGHT).plain)


def _as_json(shown: PipelineView) -> object:
    return {"error": shown.error} if shown.overview is None else shown.overview.to_json()


def _width() -> int:
    return max(40, int(os.environ.get("COLUMNS") or _WIDTH))


class _Poller:
    """Poll pipelines; one that does not respond in time is shown from its last sample."""

    def __init__(self, pipelines: Pipelines, patience_s: float) -> None:
        """Create the poller; `patience_s`: how long a look takes at most."""
        from sluice.etl.cached_value import SourcePoller

        self._pipelines = pipelines
        self._timeout_s = patience_s
        self._poller = SourcePoller()

    def at(self, name: str) -> PipelineView:
        """Poll a pipeline; the view has its error if it can't be read now."""
        lag = f"{name} lag"
        questions = {name: lambda: self._overview(name), lag: lambda: self._points(name)}
        answers = self._poller.poll(questions, self._timeout_s)
        return PipelineView(
            name,
            answers.values.get(name),
            answers.values.get(lag, ()),
            answers.errors.get(name, ""),
        )

    def _overview(self, name: str) -> Overview:
        from sluice.etl.operate.overview import overview

        return overview(self._pipelines[name].settings, self._timeout_s * _OVERVIEW_TIME_SHARE)

    def _points(self, name: str) -> list[LagPoint]:
        from sluice.etl.downstream.ownership import downstream_name
        from sluice.relay.measures import HOUR, CounterStore

        settings = self._pipelines[name].settings
        measures = CounterStore(settings.open_relay(), downstream_name(settings.target))
        return measures.points(HOUR)


class _LiveScreen:
    """Look in a thread, show what was seen last, and listen to keys."""

    def __init__(self, pipelines: Pipelines, every_s: float) -> None:
        self._poller = _Poller(pipelines, _POLL_TIMEOUT_S)
        self._names = list(pipelines)
        self._at = 0
        self._every_s = every_s
        self._stopped = False
        self._again = threading.Event()
        self._shown = PipelineView(self._names[0], None)

    def run(self) -> None:
        """Run until `q` or Ctrl-C."""
        from rich.console import Console
        from rich.live import Live

        threading.Thread(target=self._look, name="top", daemon=True).start()
        console = Console()
        with _raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                size = console.size
                live.update(
                    screen(self._shown, size.width, size.height, self._keys()), refresh=True
                )
                if select.select([sys.stdin], [], [], 0.25)[0] and self._is_end(
                    os.read(sys.stdin.fileno(), 1)
                ):
                    return

    def _keys(self) -> str:
        return f"{_KEYS}{'  STOPPED' if self._stopped else ''}"

    def _is_end(self, key: bytes) -> bool:
        if key in (b"q", b"\x03", b""):
            return True
        if key == b" ":
            self._stopped = not self._stopped
        elif key in (b"n", b"p"):
            self._at = (self._at + (1 if key == b"n" else -1)) % len(self._names)
            self._shown = PipelineView(self._names[self._at], None)
            self._again.set()
        return False

    def _look(self) -> None:
        while True:
            at = self._at
            if not self._stopped or self._shown.overview is None:
                shown = self._poller.at(self._names[at])
                if at == self._at:
                    self._shown = shown
            self._again.wait(self._every_s)
            self._again.clear()


@contextmanager
def _raw_keys() -> Iterator[None]:
    """Read keys at once, without showing them."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
