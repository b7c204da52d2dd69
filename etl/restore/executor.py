"""Prepare a restore's rows and changes on Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from sluice.etl.apply import Prepare, SparkPreparer, prepare_options
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.spark_loads import MakeLoads, SparkLoadMaker
from sluice.etl.history.as_of.api import PlanExecutor
from sluice.etl.settings import Settings
from sluice.etl.spark.session_target import SessionTarget

__all__ = ["RestoreExecutor", "SparkExecutor"]


class RestoreExecutor(Protocol):
    """Prepare a restore's rows and changes; `own`: the settings of the restore."""

    def loads(self, own: Settings, source: SnapshotSource) -> AbstractContextManager[MakeLoads]:
        """Open what turns chunks of a snapshot into loads."""

    def steps(
        self, own: Settings, url: str, without_rows: frozenset[int]
    ) -> AbstractContextManager[Prepare]:
        """Open what turns the archive's windows at `url` into steps, without some tables (ids)."""

    def past(self) -> PlanExecutor | None:
        """Return where the state to compare with is computed, None for Spark."""


class SparkExecutor:
    """Prepare in Spark sessions apart from the pipeline's, which are not disturbed.

    `role`: the sessions' owner.
    """

    def __init__(self, role: str) -> None:
        self._role = role

    @contextmanager
    def loads(self, own: Settings, source: SnapshotSource) -> Iterator[MakeLoads]:
        """Open a maker of loads in the restore's session for copies."""
        with contextlib.closing(
            SparkLoadMaker(
                SessionTarget(own.spark, own.spark_role("copy"), own.relay.url), source.spec()
            )
        ) as spark:
            yield spark

    @contextmanager
    def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> Iterator[Prepare]:
        """Open a preparer of steps in the restore's session."""
        options = replace(prepare_options(own), without_rows=without_rows)
        preparer = SparkPreparer(SessionTarget(own.spark, self._role, url), options)
        try:
            yield preparer
        finally:
            preparer.close()

    def past(self) -> PlanExecutor | None:
        """Return None: Spark computes the state to compare with."""
        return None
