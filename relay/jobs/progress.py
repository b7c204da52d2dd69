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
from typing import Any, ClassVar, NamedTuple, Self

from sluice.relay.jobs.runner import Runner
from sluice.relay.json_codec import JsonDocument

__all__ = ["JobCounts", "JobPace", "JobProgress", "TableProgress", "WorkerProgress"]

_SESSIONS = 4
"""Sessions that copy side by side: what `[apply] worker-count` is by default."""
_MAX_DOUBT = 0.2
"""Where more than a fifth of the time left depends on what is unknown (one standard error), none is
shown.
"""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Rows that were written (or compared), bytes that were read for them, chunks that are whole.

    `planned_bytes`: what the plan took the bytes for; 0 if `bytes` are the plan's. `extra`: what
    was done besides, such as indexes, as bytes that would have taken as long. It is negative where
    bytes took less time than those of other parts do.
    """

    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    planned_bytes: int = 0
    extra: int = 0

    def __add__(self, other: JobCounts) -> JobCounts:
        is_planned = self.planned_bytes or other.planned_bytes
        return JobCounts(
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.chunks + other.chunks,
            self.bytes_of_plan + other.bytes_of_plan if is_planned else 0,
            self.extra + other.extra,
        )

    @property
    def bytes_of_plan(self) -> int:
        """Return the share of the plan's bytes that is done."""
        return self.planned_bytes or self.bytes

    @property
    def work(self) -> int:
        """Return what is done, in bytes that take equally long."""
        return self.bytes_of_plan + self.extra


class JobPace(NamedTuple):
    """What one process does, or all of a job's together, 0 while nothing is known.

    `work_per_s`: bytes of `JobCounts.work`. A chunk takes `chunk_s`, give or take `doubt_s`, and
    each byte of work `rest_s` besides. `since_s`: how long the step under way runs; `step_s`: what
    a step takes.
    """

    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    work_per_s: float = 0.0
    chunk_s: float = 0.0
    doubt_s: float = 0.0
    rest_s: float = 0.0
    since_s: float = 0.0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TableProgress(JsonDocument):
    """A table of a job, by its upstream name: what is done, and about how many bytes there are.

    `rows_in_all` is None if it is unknown. `extra_in_all`: see `JobCounts.extra`. `later_s`: what
    follows all work takes so many seconds, whatever the pace of the work.
    """

    done: JobCounts = JobCounts()
    bytes_in_all: int = 0
    chunks_in_all: int = 0
    rows_in_all: int | None = None
    extra_in_all: int = 0
    later_s: float = 0.0

    @property
    def work_in_all(self) -> int:
        """Return what there is to do, in bytes that take equally long."""
        return self.bytes_in_all + self.extra_in_all

    @property
    def percent(self) -> int | None:
        """Return the percentage of the bytes, or else of the chunks; None if both are unknown."""
        if self.bytes_in_all:
            return min(100, 100 * self.done.bytes_of_plan // self.bytes_in_all)
        return 100 * self.done.chunks // self.chunks_in_all if self.chunks_in_all else None

    @property
    def percent_of_work(self) -> int | None:
        """Return the percentage of bytes and extra work, or else as `percent`."""
        if self.bytes_in_all and self.work_in_all > 0:
            return min(100, 100 * self.done.work // self.work_in_all)
        return self.percent

    def whole(self) -> TableProgress:
        """Return the progress of a finished table: what is done is all there was."""
        rows = None if self.rows_in_all is None else self.done.rows
        return TableProgress(
            replace(self.done, planned_bytes=0, extra=0), self.done.bytes, self.done.chunks, rows
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
    work_per_s: float = 0.0
    chunk_s: float = 0.0
    doubt_s: float = 0.0
    rest_s: float = 0.0
    since_s: float = 0.0
    step_s: float = 0.0
    tables: Mapping[str, JobCounts] = field(default_factory=dict)

    @property
    def pace(self) -> JobPace:
        """Return the recent pace."""
        return JobPace(
            self.rows_per_s, self.bytes_per_s, self.work_per_s, self.chunk_s, self.doubt_s,
            self.rest_s, self.since_s, self.step_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobProgress:
    """All processes of a run together. `is_done`: nothing is left, whatever was estimated.

    `paces`: of the processes that work.
    """

    tables: Mapping[str, TableProgress] = field(default_factory=dict)
    doing: tuple[str, ...] = ()
    paces: tuple[JobPace, ...] = ()
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
            tuple(member.pace for member in at_work),
        )

    @property
    def rows_per_s(self) -> float:
        """Return the recent pace of all processes."""
        return sum(pace.rows_per_s for pace in self.paces)

    @property
    def bytes_per_s(self) -> float:
        """Return the recent pace of all processes."""
        return sum(pace.bytes_per_s for pace in self.paces)

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
        """Return the percentage of the work, or of the chunks; None if the total is unknown.

        100 for a job that is done, and for no other: sizes are estimates.
        """
        if self.is_done:
            return 100
        percent = self.in_all.percent_of_work
        return None if percent is None else max(0, min(99, percent))

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
            sum(part.extra_in_all for part in parts),
            sum(part.later_s for part in parts),
        )

    @property
    def left_s(self) -> float | None:
        """Estimate the remaining seconds at the recent pace, None if that is impossible.

        It is in the first hundredth of the work, when an estimate was exceeded, and while the
        chunks to come are of another size than those that are done: what they take isn't known.
        """
        whole = self.in_all
        paces = [pace for pace in self.paces if pace.work_per_s]
        left = whole.work_in_all - whole.done.work
        if self.is_done or not paces or left <= 0 or whole.done.work <= whole.work_in_all // 100:
            return None
        if whole.chunks_in_all:
            found_s = _seconds_of(whole, left, paces)
        else:
            found_s = left / sum(pace.work_per_s for pace in paces)
        if found_s is None:
            return None
        # the next chunks come together, and are as large as those that are left
        chunks = max(1, whole.chunks_in_all - whole.done.chunks)
        next_s = found_s * min(1.0, _SESSIONS / chunks) if whole.chunks_in_all else 0.0
        passed = [min(pace.since_s, max(pace.step_s, next_s)) for pace in paces]
        left_s = found_s - sum(passed) / len(passed)
        return left_s + whole.later_s if left_s > 0 else None

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


def _seconds_of(whole: TableProgress, left: int, paces: list[JobPace]) -> float | None:
    """Return how long `left` bytes of work in known chunks take, None if that is in doubt."""
    done, chunks = whole.done, max(0, whole.chunks_in_all - whole.done.chunks)
    count = len(paces)

    def mean(values: Iterable[float]) -> float:
        return sum(values) / count

    seconds = mean(pace.chunk_s for pace in paces) * chunks + mean(p.rest_s for p in paces) * left
    size = whole.bytes_in_all - done.bytes_of_plan
    unlike = abs(chunks - size * done.chunks / (done.bytes_of_plan or 1))
    if unlike * mean(pace.doubt_s for pace in paces) > _MAX_DOUBT * seconds:
        return None
    return seconds / count


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
