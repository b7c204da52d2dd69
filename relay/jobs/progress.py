"""A job's progress, for people: each process that runs it records its own, every second.

    jobs/<id>/progress/<run>/base.json
        by table, the totals, and what was done before this run
    jobs/<id>/progress/<run>/<token>.json
        what one process of the run has done, how fast, and its heartbeat

The heartbeat is a counter: a process that wants to know whether another lives reads it twice, by
its own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from sluice.relay.jobs.runner import Runner
from sluice.relay.json_codec import JsonDocument

__all__ = ["JobCounts", "JobProgress", "TableProgress", "WorkerProgress"]


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Rows that were written (or compared), bytes that were read for them, chunks that are whole.

    `planned_bytes`: what the plan took the bytes for; 0 if `bytes` are the plan's.
    """

    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    planned_bytes: int = 0

    def __add__(self, other: JobCounts) -> JobCounts:
        return JobCounts(
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.chunks + other.chunks,
            self.planned_bytes + other.planned_bytes,
        )

    @property
    def bytes_of_plan(self) -> int:
        """Return the share of the plan's bytes that is done."""
        return self.planned_bytes or self.bytes


@dataclass(frozen=True, slots=True)
class TableProgress(JsonDocument):
    """A table of a job, by its upstream name: what is done, and about how many bytes there are.

    `rows_in_all` is None if it is unknown.
    """

    done: JobCounts = JobCounts()
    bytes_in_all: int = 0
    chunks_in_all: int = 0
    rows_in_all: int | None = None

    @property
    def percent(self) -> int | None:
        """Return the percentage of the bytes, or else of the chunks; None if both are unknown."""
        if self.bytes_in_all:
            return min(100, 100 * self.done.bytes_of_plan // self.bytes_in_all)
        return 100 * self.done.chunks // self.chunks_in_all if self.chunks_in_all else None

    def whole(self) -> TableProgress:
        """Return the progress of a finished table: what is done is all there was."""
        rows = None if self.rows_in_all is None else self.done.rows
        return TableProgress(
            replace(self.done, planned_bytes=0), self.done.bytes, self.done.chunks, rows
        )


@dataclass(frozen=True, slots=True)
class WorkerProgress(JsonDocument):
    """One process's progress: its activity, its recent pace, and what it has done, by table.

    `left`: it has ended properly, and writes no more. `noted_ms` is by its own clock.
    """

    JSON_NAME: ClassVar = "the progress of a job"

    runner: Runner
    beat: int = 0
    noted_ms: int = 0
    left: bool = False
    doing: str = ""
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    tables: Mapping[str, JobCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """All processes of a run together. `is_done`: nothing is left, whatever was estimated."""

    tables: Mapping[str, TableProgress] = field(default_factory=dict)
    doing: tuple[str, ...] = ()
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    is_done: bool = False

    @classmethod
    def from_members(
        cls, base: Mapping[str, TableProgress], members: Iterable[WorkerProgress]
    ) -> Self:
        """Add the processes' progress to the totals."""
        members = list(members)
        tables = dict(base)
        for member in members:
            for name, done in member.tables.items():
                before = tables.get(name, TableProgress())
                tables[name] = replace(before, done=before.done + done)
        at_work = [member for member in members if not member.left]
        return cls(
            tables,
            tuple(dict.fromkeys(member.doing for member in at_work if member.doing)),
            sum(member.rows_per_s for member in at_work),
            sum(member.bytes_per_s for member in at_work),
        )

    def at_rest(self, *, is_done: bool) -> JobProgress:
        """Return the progress of a job that no process runs.

        `is_done`: it has done all that it was to do.
        """
        tables = (
            {name: table.whole() for name, table in self.tables.items()} if is_done else self.tables
        )
        return JobProgress(tables, is_done=is_done)

    @property
    def percent(self) -> int | None:
        """Return the percentage of the bytes, or of the chunks; None if the total is unknown.

        100 for a job that is done, and for no other: sizes are estimates.
        """
        if self.is_done:
            return 100
        percent = self.in_all.percent
        return None if percent is None else min(99, percent)

    @property
    def in_all(self) -> TableProgress:
        """Return the tables' sums."""
        parts = list(self.tables.values())
        rows = [part.rows_in_all for part in parts]
        return TableProgress(
            sum((part.done for part in parts), JobCounts()),
            sum(part.bytes_in_all for part in parts),
            sum(part.chunks_in_all for part in parts),
            None if None in rows else sum(row for row in rows if row is not None),
        )

    @property
    def left_s(self) -> float | None:
        """Estimate the remaining seconds at the recent pace, None if that is impossible.

        It is in the first hundredth of the bytes, and when an estimate of the bytes was exceeded.
        """
        whole = self.in_all
        done, in_all = whole.done.bytes_of_plan, whole.bytes_in_all
        if self.is_done or not self.bytes_per_s or not in_all // 100 < done < in_all:
            return None
        return (in_all - done) * whole.done.bytes / done / self.bytes_per_s

    def __str__(self) -> str:
        whole, left_s = self.in_all, self.left_s
        of = f" of about {whole.bytes_in_all / 1e6:,.1f} MB" if whole.bytes_in_all else ""
        parts = [
            *([] if self.percent is None else [f"{self.percent} %{of}"]),
            f"{whole.done.rows:,} rows",
            f"{self.rows_per_s:,.0f}/s",
            *([] if left_s is None else [f"about {left_s:,.0f} s left"]),
            *self.doing,
        ]
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for scripts.

        Where the job's total is known, a table without any of it has nothing left to do.
        """
        whole, left_s = self.in_all, self.left_s
        of_empty = None if self.percent is None else 100
        return {
            "percent": self.percent,
            **_counts(whole),
            "rows_per_s": round(self.rows_per_s, 1),
            "bytes_per_s": round(self.bytes_per_s, 1),
            "left_s": None if left_s is None else round(left_s, 1),
            "doing": list(self.doing),
            "tables": {
                name: {
                    "percent": of_empty if one.percent is None else one.percent,
                    **_counts(one),
                }
                for name, one in self.tables.items()
            },
        }


def _counts(table: TableProgress) -> dict[str, Any]:
    done = table.done
    return {
        "rows": done.rows,
        "bytes": done.bytes,
        "chunks": done.chunks,
        "bytes_in_all": table.bytes_in_all,
        "chunks_in_all": table.chunks_in_all,
        "rows_in_all": table.rows_in_all,
    }
