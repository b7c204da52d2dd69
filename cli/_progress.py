"""Show a replay's progress on standard error: bars on a terminal, else a line every 2 s."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from sluice.cli._copy_progress import copy_text
from sluice.devstack.progress_view import ReplicationProgress

if TYPE_CHECKING:
    from sluice.etl.copy import CopyProgressCounts as CopyProgress

_LINE_INTERVAL_S = 2.0


class ReplayProgress:
    """Shows transactions received, landed and applied, and the lag.

    Lines printed through `say` stay above the bars.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed = 0.0
        self._last: tuple[object, ...] = ()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description:<14}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, line: str) -> None:
        """Print a line."""
        if self._bars is None:
            click.echo(line, err=True)
        else:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show_copy(self, progress: CopyProgress, what: str) -> None:
        """Show how far a copy is, or `what` else copies."""
        now = time.monotonic()
        text = copy_text(progress, now)
        if self._bars is not None:
            name = "copied"
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=None, note="")
            self._bars.update(
                self._tasks[name],
                completed=progress.chunks,
                total=progress.chunks_in_all or None,
                note=text,
            )
        elif now - self._printed >= _LINE_INTERVAL_S:
            self._printed = now
            click.echo(f"{what}: {text}", err=True)

    def show(self, what: str, total: int, progress: ReplicationProgress, copied: int = 0) -> None:
        """Show `progress` on the way to the snapshot `what`.

        `total`: transactions that are to come, 0 if not known, of which `copied` needn't be
        replicated.
        """
        lag = "" if progress.lag_ms is None else f"lag {progress.lag_ms / 1000:.1f} s"
        if (done := self._tasks.pop("copied", None)) is not None and self._bars is not None:
            self._bars.remove_task(done)
        counts = {
            "received": progress.received or 0,
            "landed": progress.landed,
            "applied": progress.applied,
        }
        if self._bars is not None:
            for name, count in counts.items():
                if name not in self._tasks:
                    self._tasks[name] = self._bars.add_task(name, total=None, note="")
                note = f"to {what}   {lag}" if name == "applied" else ""
                left = total - copied if name != "received" else total
                self._bars.update(self._tasks[name], completed=count, total=left or None, note=note)
            return
        now = time.monotonic()
        key = (what, *counts.values())
        if now - self._printed >= _LINE_INTERVAL_S and key != self._last:
            self._printed, self._last = now, key
            click.echo(
                f"{what}: transactions "
                + ", ".join(f"{count:,} {name}" for name, count in counts.items())
                + (f" ({copied:,} came with the copy)" if copied else "")
                + (f", {lag}" if lag else ""),
                err=True,
            )
