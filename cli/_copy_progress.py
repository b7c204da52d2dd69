"""Progress of a copy: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from etl.copy import Progress

_LINE_EVERY_S = 2.0


class CopyProgress:
    """Shows bytes read, rows written, the rate and how long it will take."""

    def __init__(self) -> None:
        self._console = Console()
        self._bars: Bars | None = None
        self._task = TaskID(0)
        self._printed = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
                DownloadColumn(),
                TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
                console=self._console, transient=True,
            )  # fmt: skip
            self._bars.start()
            self._task = self._bars.add_task("copy", total=None, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, progress: Progress) -> None:
        """Show how far it is."""
        seconds = max(time.monotonic() - progress.began_s, 1e-3)
        rate = f"{progress.rows:,} rows, {progress.rows / seconds:,.0f} rows/s"
        if self._bars is not None:
            self._bars.update(
                self._task, completed=progress.bytes, total=progress.bytes_in_all, note=f"{rate}   {progress.doing}"
            )  # fmt: skip
            return
        now = time.monotonic()
        if now - self._printed >= _LINE_EVERY_S:
            self._printed = now
            percent = 100 * progress.bytes // max(progress.bytes_in_all, 1)
            left = seconds * (progress.bytes_in_all - progress.bytes) / progress.bytes if progress.bytes else None
            click.echo(
                f"{percent} %: {progress.bytes / 1e6:,.1f} of {progress.bytes_in_all / 1e6:,.1f} MB, chunk"
                f" {progress.chunks} of {progress.chunks_in_all}, {rate}"
                f"{'' if left is None else f', {left:,.0f} s left'}   {progress.doing}"
            )
