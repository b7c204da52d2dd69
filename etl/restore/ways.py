"""How a restore has rows and changes prepared: on Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from etl.apply import Prepare, SparkPreparer, prepare_options
from etl.asof.front import Run
from etl.copy.base_source import BaseSource
from etl.copy.loads import MakeLoads, SparkLoads
from etl.settings import Settings
from etl.spark.place import Place

__all__ = ["OnSpark", "Ways"]


class Ways(Protocol):
    """`own` are the settings of the restore."""

    def loads(self, own: Settings, source: BaseSource) -> AbstractContextManager[MakeLoads]:
        """How chunks of a base become loads."""

    def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> AbstractContextManager[Prepare]:
        """How windows of the archive at `url` become steps; changes of some tables (ids) don't."""

    def past(self) -> Run | None:
        """Where the state is computed that restored tables are compared with, None for Spark."""


class OnSpark:
    """In sessions of their own, so that the pipeline's go on undisturbed. `role`: whose they are."""

    def __init__(self, role: str) -> None:
        self._role = role

    @contextmanager
    def loads(self, own: Settings, source: BaseSource) -> Iterator[MakeLoads]:
        with contextlib.closing(
            SparkLoads(Place(own.spark, own.spark_role("copy"), own.relay.url), source.spec())
        ) as spark:
            yield spark

    @contextmanager
    def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> Iterator[Prepare]:
        options = replace(prepare_options(own), without_rows=without_rows)
        preparer = SparkPreparer(Place(own.spark, self._role, url), options)
        try:
            yield preparer
        finally:
            preparer.close()

    def past(self) -> Run | None:
        return None
