"""Commits that came below what readers had been given: each of those readers lacks a transaction.

    <data dir>/late_commits    a line each: commit_ts, start_ts, and the TSO through which readers may have been then

TiDB's promise makes them impossible; they come when PD's clock went back, or when an operator decided a transaction in
another way than it ended. The file outlives restarts and the index. It is removed by an operator who has repaired the
rows of every reader.
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
    """A transaction, and `passed_ts`, the TSO through which readers may have been when its Commit came."""

    commit_ts: int
    start_ts: int
    passed_ts: int


class LateCommits:
    """Thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        """Read the file. Lines that can't be read are skipped with an error in the log."""
        self.path = data_dir / _NAME
        self._lock = threading.Lock()
        self._found: list[LateCommit] = []
        self._is_open = False
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                self._found.append(LateCommit(*map(int, line.split())))
            except (ValueError, TypeError):
                log.error("%s: a line can't be read: %r", self.path, line)

    def add(self, found: Sequence[LateCommit]) -> None:
        """Keep them, durably unless the disk refuses, which is logged."""
        with self._lock:
            self._forget_if_removed()
            self._found += found
            try:
                with self.path.open("a") as file:
                    file.writelines(f"{each.commit_ts} {each.start_ts} {each.passed_ts}\n" for each in found)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                self._is_open = True
                log.error("%s can't be written, late commits are forgotten with this process: %s", self.path, error)

    def at_or_below(self, ts: int) -> list[LateCommit]:
        """Return those at or below the position of a reader (TSO), which lacks them unless it read them since."""
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
        """Raise MissedCommitError if one came since there were `count`, which a reader at `ts` (TSO) lacks."""
        for each in self._found[count:]:
            if each.commit_ts <= ts:
                raise MissedCommitError(each.commit_ts, each.start_ts, str(self.path))

    @property
    def count(self) -> int:
        """How many there are; it falls to 0 when an operator removes the file."""
        return len(self._found)

    def _forget_if_removed(self) -> None:
        if self._found and not self._is_open and not self.path.exists():
            self._found = []
