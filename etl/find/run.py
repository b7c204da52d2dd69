"""The search: a little is looked through here, much by Spark's workers."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Iterator

import pyarrow as pa

from etl.find.condition import Condition
from etl.find.errors import ConditionError
from etl.find.found import Found
from etl.find.logs import Past, Stretch
from etl.find.query import Query
from etl.find.scan import Scan, wanted_tables
from etl.find.worker import RESULTS, TASKS, FindInWindows
from etl.prepare import BatchDocument, WindowDocument
from etl.rules import Filter, only_tables
from etl.settings import Settings
from etl.spark import session as spark_session
from etl.spark.frame import TaskFrame
from etl.spark.job import stream
from etl.spark.judge import Judge
from etl.spark.place import Place
from relay import Window

HERE_CHANGES = 1_000_000
"""So many row changes are looked through in this process before Spark is asked."""
_TASK_CHANGES = 200_000
_TASK_WINDOWS = 500
_JOB_TASKS = 8
_TIMEOUT_S = 600.0

OnProgress = Callable[[int, Found], None]
"""Told through where (TSO) all has been looked through, and what was found until then. May raise, to end it."""


def find(
    settings: Settings,
    query: Query,
    *,
    on_progress: OnProgress = lambda through, found: None,
    here_changes: int = HERE_CHANGES,
) -> Found:
    """What the query wants, as far as the past reaches, see `Past`. Beyond `here_changes` row changes it is looked for
    by Spark. Raises ConditionError, FindError, relay errors, RowDecodeError, SparkError.
    """
    if query.where:
        Condition(query.where)
    found = Found()
    past = Past.of(settings)
    with past.held("`sluice find`", query.since):
        for stretch in past.stretches(query.since, query.until):
            _Search(settings, stretch, query, on_progress, here_changes).run(found)
    if found.unknown:
        raise ConditionError(
            f"--where: no table that was looked at has a column {' or '.join(found.unknown)}: names are those of then"
        )
    return found


class _Search:
    """One stretch of the past."""

    def __init__(
        self, settings: Settings, stretch: Stretch, query: Query, on_progress: OnProgress, here_changes: int
    ) -> None:
        self._settings = settings
        self._stretch = stretch
        self._query = query
        self._on_progress = on_progress
        self._here_changes = here_changes
        self._filter = only_tables(Filter(), query.tables)

    def run(self, found: Found) -> None:
        """Add what is there."""
        scan = Scan(self._stretch.log.storage, self._query)
        groups = self._groups()
        left = self._here_changes
        for changes, windows in groups:
            for window in windows:
                found.add(scan(window), self._query)
            self._on_progress(windows[-1].hi, found)
            left -= changes
            if left <= 0:
                break
        self._by_spark(groups, found)

    def _groups(self) -> Iterator[tuple[int, list[WindowDocument]]]:
        """Windows in which there may be something, as many as one task looks through, and how many changes they hold
        at most.
        """
        group: list[WindowDocument] = []
        changes = 0
        stretch = self._stretch.only(self._ids) if self._query.tables else self._stretch
        for window in stretch.windows():
            document = WindowDocument.of(window)
            if not (document.schema.ddls or wanted_tables(document, self._filter)):
                continue
            group.append(document)
            changes += window.changes
            if changes >= _TASK_CHANGES or len(group) == _TASK_WINDOWS:
                yield changes, group
                group, changes = [], 0
        if group:
            yield changes, group

    def _ids(self, window: Window) -> set[int]:
        return wanted_tables(WindowDocument.of(window), self._filter)

    def _by_spark(self, groups: Iterator[tuple[int, list[WindowDocument]]], found: Found) -> None:
        batches = _batched(groups)
        first = next(batches, None)
        if first is None:
            return
        # A session of its own: another search's is not to be interrupted.
        role = f"find {secrets.token_hex(6)}"
        spark = spark_session.connect(Place(self._settings.spark, role, self._stretch.url))
        try:
            frame = TaskFrame(spark, FindInWindows(self._stretch.url, self._query.to_json()), TASKS, RESULTS)
            for tasks in itertools.chain([first], batches):
                texts = [BatchDocument(tuple(windows)).to_text() for windows in tasks]
                with Judge().telling():
                    for batch in stream(spark, frame.of(pa.table({"windows": texts})), _TIMEOUT_S):
                        for text in batch.column(0).to_pylist():
                            found.add(Found.from_json(json.loads(text)), self._query)
                self._on_progress(tasks[-1][-1].hi, found)
        finally:
            spark_session.close(spark)


def _batched(groups: Iterator[tuple[int, list[WindowDocument]]]) -> Iterator[list[list[WindowDocument]]]:
    tasks: list[list[WindowDocument]] = []
    for _, windows in groups:
        tasks.append(windows)
        if len(tasks) == _JOB_TASKS:
            yield tasks
            tasks = []
    if tasks:
        yield tasks
