"""Show a replay's progress on standard error: bars on a terminal, else a line every 2 s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn

from sluice.cli._copy_progress import CopyPace, TerminalBars
from sluice.devstack.progress_view import ReplicationProgress

if TYPE_CHECKING:
    from sluice.etl.copy import CopyProgressCounts


class ReplayProgress(TerminalBars):
    """Show transactions received, landed and applied, and the lag.

    Lines printed through `say` stay above the bars.
    """

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._tasks: dict[str, TaskID] = {}
        self._last: tuple[object, ...] = ()
        self._copy_pace = CopyPace()

    def say(self, line: str) -> None:
        """Print a line."""
        if self._bars is None:
            click.echo(line, err=True)
        else:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show_copy(self, progress: CopyProgressCounts, what: str) -> None:
        """Show how far a copy is, or `what` else copies."""
        text = self._copy_pace.text(progress)
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
        elif self._is_line_due():
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
        key = (what, *counts.values())
        if key != self._last and self._is_line_due():
            self._last = key
            click.echo(
                f"{what}: transactions "
                + ", ".join(f"{count:,} {name}" for name, count in counts.items())
                + (f" ({copied:,} came with the copy)" if copied else "")
                + (f", {lag}" if lag else ""),
                err=True,
            )
