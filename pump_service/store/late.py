"""Record commits that came below readers' positions: those readers lack a transaction.

    <data dir>/late_commits    a line each: commit_ts, start_ts, highest TSO of readers then

TiDB's promise makes them impossible; they come when PD's clock went back, or when an operator
decided a transaction in another way than it ended. The file outlives restarts and the index. An
operator who has repaired the rows of every reader removes it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.pump_service.store.errors import MissedCommitError

log = logging.getLogger(__name__)

_NAME = "late_commits"


class LateCommit(NamedTuple):
    """Hold a transaction, and `passed_ts`, the TSO that readers may have passed when it came."""

    commit_ts: int
    start_ts: int
    passed_ts: int


class LateCommits:
    """Hold the late commits of a data directory. Thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        """Read the file. Unreadable lines are skipped and logged as errors."""
        self.path = data_dir / _NAME
        self._lock = threading.Lock()
        self._found: list[LateCommit] = []
        self._is_open = False
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                self._found.append(LateCommit(*map(int, line.split())))
            except (ValueError, TypeError):
                log.error("%s: unreadable line: %r", self.path, line)

    def add(self, found: Sequence[LateCommit]) -> None:
        """Save late commits durably; a disk error is only logged."""
        with self._lock:
            self._forget_if_removed()
            self._found += found
            try:
                with self.path.open("a") as file:
                    file.writelines(
                        f"{each.commit_ts} {each.start_ts} {each.passed_ts}\n" for each in found
                    )
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                self._is_open = True
                log.error(
                    "can't write %s, late commits are lost when this process ends: %s",
                    self.path,
                    error,
                )

    def at_or_below(self, ts: int) -> list[LateCommit]:
        """Return the commits at or below a reader's position (TSO).

        The reader lacks them unless it read them since.
        """
        if not self._found:
            return []
        with self._lock:
            self._forget_if_removed()
            return [each for each in self._found if each.commit_ts <= ts]

    def check(self, ts: int) -> None:
        """Raise MissedCommitError if a reader that begins at `ts` (TSO) may lack one."""
        for each in self.at_or_below(ts):
            if ts <= each.passed_ts:
                raise MissedCommitError(each.commit_ts, each.start_ts, str(self.path))

    def check_since(self, ts: int, count: int) -> None:
        """Raise MissedCommitError if over `count` exist and a reader at `ts` (TSO) lacks one."""
        for each in self._found[count:]:
            if each.commit_ts <= ts:
                raise MissedCommitError(each.commit_ts, each.start_ts, str(self.path))

    @property
    def count(self) -> int:
        """Return their number; it falls to 0 when an operator removes the file."""
        return len(self._found)

    def _forget_if_removed(self) -> None:
        if self._found and not self._is_open and not self.path.exists():
            self._found = []
