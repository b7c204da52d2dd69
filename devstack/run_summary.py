"""The figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.devstack.accident_demo import Accident
from sluice.devstack.progress_view import CheckpointTrace, ReplicationProgress
from sluice.etl.verify import VerifySummary
from sluice.tidb import tso

_CAUGHT_UP_MS = 1_000
Span = tuple[float, float]
"""Begin and end, in Unix ms."""


@dataclass(slots=True)
class RunSummary:
    """The result of a run. Counts are those of what was replicated, through the last snapshot."""

    recording: str
    speed: str = "1"
    copied: int = 0
    """Transactions that came with the copy; 0 without one. `copied_ts`: its timestamp (TSO)."""
    copied_ts: int = 0
    copied_tables: int = 0
    copied_rows: int = 0
    copied_s: float = 0.0
    caught_up_s: float | None = None
    """After the copy, until the replica was no more than a second behind; None if it never was."""
    copied_again: str = ""
    """The repair of a damaged table by a backfill."""
    verified: str = ""
    """The tables that were compared with TiDB at a checkpoint.

    `spoiled`: how one value that was changed downstream was found.
    """
    spoiled: str = ""
    quality: str = ""
    """The findings of a quality report, and its place."""
    accident: str = ""
    """The accident upstream, what it was `found` by, and what was `restored`."""
    found: str = ""
    restored: str = ""
    transactions: int = 0
    changes: int = 0
    ddls: int = 0
    windows: int = 0
    rows_per_s: float = 0.0
    """Row changes per second.

    By the time from the first commit in the stand-in cluster to the last checkpoint.
    """
    lag_p50_ms: float = 0.0
    """Median time from a commit to the downstream's checkpoint.

    From the commit in the stand-in cluster until the checkpoint was seen at or above it, without
    the holds, and without what committed before the replica had caught up.
    """
    lag_p95_ms: float = 0.0
    lag_max_ms: float = 0.0
    snapshots: list[str] = field(default_factory=list)
    tables: int = 0
    rows_compared: int = 0
    differences: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    start_s: float = 0.0
    """Time until all parts were ready and the pipeline ran."""
    total_s: float = 0.0

    def prove(self, verified: VerifySummary) -> None:
        """Take over what a verification of all tables found."""
        self.verified = (
            f"{len(verified.tables)} tables, {verified.rows:,} rows equal to TiDB at commit_ts"
            f" {verified.ts}, in {verified.seconds:.1f} s"
        )
        self.differences += [
            f"verify: {table.name}: {table.differences} {table.problem}"
            for table in verified.unequal
        ]

    def recover(
        self, accident: Accident, commit_ts: int, seconds: float, rows: tuple[int, int]
    ) -> None:
        """Take over what became of an accident.

        `rows`: of the restored table, and of the one beside it.
        """
        there, left = rows
        self.accident = (
            f"at {tso.time_text(accident.commit_ts)} DELETE FROM {accident.table}, its WHERE"
            f" forgotten: all {accident.rows:,} rows gone, in TiDB and in the replica"
        )
        self.found = f"by `sluice find`: commit_ts {commit_ts}"
        self.restored = (
            f"{accident.restored}: {there:,} rows, as right before it, in {seconds:.0f} s;"
            f" {accident.table}: {left:,} rows"
        )
        if (commit_ts, there, left) != (accident.commit_ts, accident.rows, 0):
            self.differences.append(
                f"the accident at {accident.commit_ts} took {accident.rows:,} rows of"
                f" {accident.table}; restored to before {commit_ts} there are {there:,}, and"
                f" {left:,} in the table itself"
            )

    def count(self, progress: ReplicationProgress, moves: Sequence[tuple[int, int]]) -> None:
        """Take over what was applied, and how fast. `moves`: the checkpoint's (TSO, Unix ms)."""
        self.transactions = progress.applied
        self.changes = progress.changes_applied
        self.ddls = progress.ddls_applied
        self.windows = progress.windows_applied
        if len(moves) > 1 and moves[-1][1] > moves[0][1]:
            self.rows_per_s = progress.changes_applied / ((moves[-1][1] - moves[0][1]) / 1000)

    def measure(
        self, trace: CheckpointTrace, commits: list[tuple[int, float]], holds: Sequence[Span]
    ) -> None:
        """Take over the lag of `commits` (TSO, Unix ms); `holds`: when applying was held."""
        since = 0.0
        if self.copied_ts:
            later = [commit for commit in commits if commit[0] > self.copied_ts]
            moves = trace.moves()
            since = caught_up_at(moves, later) or float("inf")
            if moves and since < float("inf"):
                self.caught_up_s = max(0.0, since - moves[0][1]) / 1000
        lags = _lags(trace.lags_ms([commit for commit in commits if commit[1] >= since]), holds)
        if len(lags) > 1:
            cuts = statistics.quantiles(lags, n=20)
            self.lag_p50_ms, self.lag_p95_ms, self.lag_max_ms = cuts[9], cuts[18], lags[-1]


def caught_up_at(
    moves: Sequence[tuple[int, int]], commits: Sequence[tuple[int, float]]
) -> float | None:
    """Return when (Unix ms) no commit had been waiting for the checkpoint for longer than a second.

    The first time; None if it never was. `moves`: the checkpoint's (TSO, Unix ms), `commits` (TSO,
    Unix ms), both ascending.
    """
    place = 0
    for checkpoint, seen_ms in moves:
        while place < len(commits) and commits[place][0] <= checkpoint:
            place += 1
        if place == len(commits) or commits[place][1] >= seen_ms - _CAUGHT_UP_MS:
            return float(seen_ms)
    return None


def _lags(lags: list[tuple[tuple[int, float], int]], holds: Sequence[Span]) -> list[float]:
    """Return each lag in ms, without the time for which applying was held."""
    found = []
    for (_, wall_ms), lag_ms in lags:
        held = sum(
            max(0.0, min(end, wall_ms + lag_ms) - max(begin, wall_ms)) for begin, end in holds
        )
        found.append(max(0.0, lag_ms - held))
    return sorted(found)
