"""Watch from outside how far replication is.

That is the content of the relay log, the downstream's checkpoint, and the lag.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql

from sluice.devstack.control import ClusterControl
from sluice.devstack.launch import StackPaths, connect
from sluice.devstack.recording import SnapshotLabel
from sluice.devstack.state import StackError
from sluice.etl.changes import server_errors
from sluice.relay import RelayLog

if TYPE_CHECKING:
    from sluice.etl.copy import CopyProgressCounts as CopyProgress

_CHECKPOINT_QUERY = "SELECT checkPoint FROM tidb_binlog.checkpoint"
_NOT_THERE = {server_errors.UNKNOWN_DATABASE, server_errors.NO_SUCH_TABLE}


@dataclass(frozen=True, slots=True)
class LandedTotals:
    """The sums over the relay log's windows through the one that ends at `hi` (TSO)."""

    lo: int
    hi: int
    transactions: int
    changes: int
    ddls: int


@dataclass(frozen=True, slots=True)
class ReplicationProgress:
    """The state of replication. None: not known, because the part that knows doesn't answer."""

    received: int | None
    """Committed transactions that the pumps have acknowledged."""
    landed: int
    applied: int
    changes_applied: int
    ddls_applied: int
    windows_landed: int
    windows_applied: int
    window: tuple[int, int] | None
    """The newest landed window (lo, hi]."""
    checkpoint: int | None
    """The commit timestamp (TSO) through which the downstream is complete."""
    lag_ms: int | None
    """How long the oldest commit that is not downstream yet has been waiting; 0 if there is none.
    """


class RelayTotals:
    """Add up the relay log's windows, reading each once."""

    def __init__(self, home: Path) -> None:
        self._log = RelayLog.open((home / "relay").as_uri())
        self._sums: list[LandedTotals] = []

    def read(self) -> list[LandedTotals]:
        """Return one entry a window, ascending; the list grows from call to call.

        Raises relay.RelayError.
        """
        while True:
            if self._sums:
                last = self._sums[-1]
                window = self._log.next(last.hi)
            else:
                last = LandedTotals(0, 0, 0, 0, 0)
                window = self._log.first()
            if window is None:
                return self._sums
            self._sums.append(
                LandedTotals(
                    window.lo, window.hi, last.transactions + window.transactions,
                    last.changes + window.changes, last.ddls + len(window.ddls),
                )
            )  # fmt: skip


class CheckpointReader:
    """Read the checkpoint row over one connection, which it opens again when MariaDB was away."""

    def __init__(self, site: StackPaths) -> None:
        self._site = site
        self._connection: pymysql.connections.Connection[Any] | None = None

    def read(self) -> int | None:
        """Return the checkpoint's commit timestamp.

        0 if there is none yet, None if MariaDB doesn't answer.
        """
        try:
            if self._connection is None:
                self._connection = connect(self._site)
            with self._connection.cursor() as cursor:
                cursor.execute(_CHECKPOINT_QUERY)
                rows = cursor.fetchall()
        except (pymysql.err.OperationalError, pymysql.err.ProgrammingError) as error:
            if error.args and error.args[0] in _NOT_THERE:
                return 0
            self.close()
            return None
        except (pymysql.err.Error, OSError):
            self.close()
            return None
        return max((int(json.loads(text)["commitTS"]) for (text,) in rows), default=0)

    def close(self) -> None:
        """Close the connection; the next read opens a new one."""
        if self._connection is not None:
            with contextlib.suppress(pymysql.err.Error, OSError):
                self._connection.close()
            self._connection = None


class ProgressView:
    """Ask relay log, downstream and stand-in cluster in one go.

    Parts that are down leave gaps, never errors.
    """

    def __init__(self, site: StackPaths) -> None:
        self._relay = RelayTotals(site.home)
        self.checkpoint = CheckpointReader(site)
        self._control = ClusterControl(site.ports["cluster-control"])

    def progress(self) -> ReplicationProgress:
        """Return the present state. Raises relay.RelayError if the relay log is damaged."""
        checkpoint = self.checkpoint.read()
        sums = self._relay.read()
        applied_windows = bisect_right(sums, checkpoint or 0, key=lambda entry: entry.hi)
        applied = sums[applied_windows - 1] if applied_windows else LandedTotals(0, 0, 0, 0, 0)
        received: int | None = None
        lag_ms: int | None = None
        with contextlib.suppress(StackError):
            received = self._control.status()["counts"].get("committed", 0)
            if checkpoint is not None:
                waiting = self._control.commits(checkpoint, 1)
                lag_ms = max(0, int(time.time() * 1000 - waiting[0][1])) if waiting else 0
        return ReplicationProgress(
            received=received,
            landed=sums[-1].transactions if sums else 0,
            applied=applied.transactions,
            changes_applied=applied.changes,
            ddls_applied=applied.ddls,
            windows_landed=len(sums),
            windows_applied=applied_windows,
            window=(sums[-1].lo, sums[-1].hi) if sums else None,
            checkpoint=checkpoint,
            lag_ms=lag_ms,
        )

    def close(self) -> None:
        """Close the connection to the downstream."""
        self.checkpoint.close()


class CheckpointTrace(threading.Thread):
    """Note when the checkpoint moved, every `interval_s`, from a thread of its own.

    From that comes the lag of each commit.
    """

    def __init__(self, site: StackPaths, interval_s: float = 0.03) -> None:
        super().__init__(name="checkpoint-trace", daemon=True)
        self._reader = CheckpointReader(site)
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._moves: list[tuple[int, int]] = []

    def run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            checkpoint = self._reader.read()
            if checkpoint and (not self._moves or checkpoint > self._moves[-1][0]):
                self._moves.append((checkpoint, int(time.time() * 1000)))
        self._reader.close()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self.is_alive():
            self.join(10)

    def moves(self) -> list[tuple[int, int]]:
        """Return (checkpoint TSO, Unix ms at which it was first seen), ascending."""
        return list(self._moves)

    def lags_ms(self, commits: list[tuple[int, float]]) -> list[tuple[tuple[int, float], int]]:
        """Return every commit (commit_ts, Unix ms) with its lag in ms.

        The lag is how long it took until a checkpoint at or above it was seen.
        """
        moves = self.moves()
        lags = []
        for commit_ts, wall_ms in commits:
            place = bisect_left(moves, commit_ts, key=lambda move: move[0])
            if place < len(moves):
                lags.append(((commit_ts, wall_ms), max(0, int(moves[place][1] - wall_ms))))
        return lags


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A quality report.

    `text` has its figures and place, `failures` each expectation that fails the run.
    """

    text: str
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observer:
    """Watch the stack; `report` gets lines of text.

    `show` gets, several times a second, the snapshot that comes next, how many transactions came
    with the copy, and how far replication is; `show_copy` how far a copy is, and what it is of:
    "copy", "restore".
    """

    report: Callable[[str], None]
    show: Callable[[SnapshotLabel, int, ReplicationProgress], None]
    show_copy: Callable[[CopyProgress, str], None]
    quality: Callable[[Path], QualityReport] | None = None
    """Proposes expectations of what is downstream and checks whether they are met.

    Takes the pipeline's settings file.
    """
