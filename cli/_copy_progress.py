"""Show a copy's progress on standard error: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column

from sluice.errors import SluiceError
from sluice.etl.display_units import counted, format_duration, format_size

if TYPE_CHECKING:
    from sluice.etl.copy import CopyProgressCounts
    from sluice.relay.jobs import Job, JobProgress

_LINE_INTERVAL_S = 2.0
_REDRAW_INTERVAL_S = 1.0


class TerminalBars:
    """Show progress bars on standard error, if it is a terminal."""

    def __init__(self, *columns: ProgressColumn) -> None:
        self._console = console = Console(stderr=True)
        self._bars = (
            Bars(*columns, console=console, transient=True) if console.is_terminal else None
        )
        self._printed = 0.0

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def _is_line_due(self) -> bool:
        """Return whether the last line is 2 s old; if so, the next one is printed now."""
        now = time.monotonic()
        is_due = now - self._printed >= _LINE_INTERVAL_S
        if is_due:
            self._printed = now
        return is_due


class CopyProgress(TerminalBars):
    """Show bytes read, rows written, the rate and how long it will take."""

    def __init__(self) -> None:
        note = TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True))
        super().__init__(BarColumn(bar_width=20), note)
        self._pace = CopyPace()
        self._task = TaskID(0)
        if self._bars is not None:
            self._task = self._bars.add_task("", total=None, note="")

    def show(self, progress: CopyProgressCounts) -> None:
        """Show how far it is."""
        self._show(*_extent(progress), self._pace.text(progress))

    def show_job(self, progress: JobProgress) -> None:
        """Show how far a job is."""
        whole = progress.in_all
        self._show(whole.done.bytes_of_plan, whole.bytes_in_all, job_text(progress))

    def _show(self, done: int, in_all: int, text: str) -> None:
        if self._bars is not None:
            self._bars.update(
                self._task, completed=min(done, in_all), total=in_all or None, note=text
            )
        elif text and self._is_line_due():
            click.echo(text, err=True)


@contextlib.contextmanager
def show_job_progress(job: Job) -> Iterator[None]:
    """Show the job's progress on the terminal, as long as the context lasts."""
    from sluice.relay.jobs import run_every

    with CopyProgress() as display:

        def show() -> bool:
            with contextlib.suppress(SluiceError, OSError):  # the job itself reports what is wrong
                display.show_job(job.status().progress)
            return False

        with run_every(show, _REDRAW_INTERVAL_S, "progress"):
            yield


class CopyPace:
    """How fast a copy that isn't a job is."""

    def __init__(self) -> None:
        from sluice.relay.jobs import Pace

        self._pace = Pace()

    def text(self, progress: CopyProgressCounts) -> str:
        """Return how far the copy is now, in a line."""
        from sluice.relay.jobs import JobCounts

        done, _ = _extent(progress)
        pace = self._pace.note(time.monotonic(), JobCounts(progress.rows, done))
        return copy_text(progress, pace.rows_per_s, pace.bytes_per_s)


def copy_text(progress: CopyProgressCounts, rows_per_s: float, done_per_s: float) -> str:
    """Return how far a copy is, in a line; `done_per_s`: bytes, or chunks if those are unknown."""
    done, in_all = _extent(progress)
    parts = [
        f"{100 * done // in_all} %" if in_all else "",
        _read(progress.bytes, progress.bytes_in_all, is_all=done >= in_all)
        if progress.bytes_in_all
        else "",
        f"{counted(progress.rows, 'row')}, {rows_per_s:,.0f}/s" if progress.rows else "",
        _left((in_all - done) / done_per_s) if done_per_s and in_all // 100 < done < in_all else "",
        progress.doing,
    ]
    return ", ".join(part for part in parts if part)


def _left(seconds: float) -> str:
    return f"about {format_duration(seconds)} left"


def _read(done: int, in_all: int, *, is_all: bool) -> str:
    return format_size(done) if is_all else f"{format_size(done)} of about {format_size(in_all)}"


def _extent(progress: CopyProgressCounts) -> tuple[int, int]:
    """Return how much is done, and of how much: bytes, or chunks if the bytes are unknown."""
    if progress.bytes_in_all:
        return min(progress.planned_bytes, progress.bytes_in_all), progress.bytes_in_all
    return progress.chunks, progress.chunks_in_all


def job_text(progress: JobProgress) -> str:
    """Return how far a job is, in a line."""
    whole = progress.in_all
    percent = "" if progress.percent is None else f"{progress.percent} %"
    parts = [
        f"{percent} of about {format_size(whole.bytes_in_all)}" if whole.bytes_in_all else percent,
        f"{counted(whole.done.rows, 'row')}, {progress.rows_per_s:,.0f}/s"
        if whole.done.rows
        else "",
        _left(progress.left_s) if progress.left_s else "",
        *progress.doing,
    ]
    return ", ".join(part for part in parts if part)
