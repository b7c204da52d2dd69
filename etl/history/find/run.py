"""Run the search: a little is searched here, much by Spark's workers."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator

from sluice.etl.changes.planning import BatchPayload, WindowPayload
from sluice.etl.changes.rules import Filter, only_tables
from sluice.etl.history.find.condition import RowCondition
from sluice.etl.history.find.query import SearchQuery
from sluice.etl.history.find.results import SearchResults
from sluice.etl.history.find.scan import FindInWindows, WindowSearch, wanted_tables
from sluice.etl.history.history_log import HistoryLog, LogRange
from sluice.etl.settings import Settings
from sluice.etl.spark.job import window_range
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.session_target import BATCH, SessionTarget
from sluice.relay import WindowRecord

MAX_LOCAL_CHANGES = 1_000_000
"""The most row changes that are searched in this process; beyond, Spark does it."""
_MAX_TASK_CHANGES = 200_000
_MAX_TASK_WINDOWS = 500
_TASKS_PER_JOB = 8
_JOB_TIMEOUT_S = 600.0

OnProgress = Callable[[int, SearchResults], None]
"""Called with the TSO through which all has been searched, and the results so far. It may raise to
end the search.
"""


def search(
    settings: Settings,
    query: SearchQuery,
    *,
    on_progress: OnProgress = lambda through, found: None,
    here_changes: int = MAX_LOCAL_CHANGES,
) -> SearchResults:
    """Return what the query wants, as far as the history reaches, see `HistoryLog`.

    Beyond `here_changes` row changes Spark searches. Raises ConditionError, FindError, relay
    errors, RowDecodeError, SparkError.
    """
    if query.where:
        RowCondition(query.where)
    found = SearchResults()
    past = HistoryLog.open(settings)
    with past.held("`sluice find`", query.since):
        for stretch in past.ranges(query.since, query.until):
            _RangeSearch(settings, stretch, query, on_progress, here_changes).run(found)
    found.check_columns()
    return found


class _RangeSearch:
    """One stretch of the past."""

    def __init__(
        self,
        settings: Settings,
        stretch: LogRange,
        query: SearchQuery,
        on_progress: OnProgress,
        here_changes: int,
    ) -> None:
        self._settings = settings
        self._range = stretch
        self._query = query
        self._on_progress = on_progress
        self._here_changes = here_changes
        self._filter = only_tables(Filter(), query.tables)

    def run(self, found: SearchResults) -> None:
        """Add the results of the range."""
        scan = WindowSearch(self._range.log.storage, self._query)
        groups = self._groups()
        left = self._here_changes
        for changes, windows in groups:
            for window in windows:
                found.add(scan(window), self._query)
            self._on_progress(windows[-1].hi, found)
            left -= changes
            if left <= 0:
                break
        self._search_on_spark(groups, found)

    def _groups(self) -> Iterator[tuple[int, list[WindowPayload]]]:
        """Yield windows that may match, as many as one task searches, with their most changes."""
        group: list[WindowPayload] = []
        changes = 0
        stretch = self._range.only(self._ids) if self._query.tables else self._range
        for window in stretch.windows():
            document = WindowPayload.from_window(window)
            if not (document.schema.ddls or wanted_tables(document, self._filter)):
                continue
            group.append(document)
            changes += window.changes
            if changes >= _MAX_TASK_CHANGES or len(group) == _MAX_TASK_WINDOWS:
                yield changes, group
                group, changes = [], 0
        if group:
            yield changes, group

    def _ids(self, window: WindowRecord) -> set[int]:
        return wanted_tables(WindowPayload.from_window(window), self._filter)

    def _search_on_spark(
        self, groups: Iterator[tuple[int, list[WindowPayload]]], found: SearchResults
    ) -> None:
        batches = _batched(groups)
        first = next(batches, None)
        if first is None:
            return
        calls = JobCalls(
            SessionTarget(self._settings.spark.for_batch(), BATCH, self._range.url),
            FindInWindows(self._range.url, self._query.to_json()),
            _JOB_TIMEOUT_S,
        )
        with contextlib.closing(calls):
            for tasks in itertools.chain([first], batches):
                searched = [BatchPayload(tuple(windows)).to_text() for windows in tasks]
                for text in calls(searched, window_range(tasks[0][0].lo, tasks[-1][-1].hi)):
                    found.add(SearchResults.from_json(json.loads(text)), self._query)
                self._on_progress(tasks[-1][-1].hi, found)


def _batched(
    groups: Iterator[tuple[int, list[WindowPayload]]],
) -> Iterator[list[list[WindowPayload]]]:
    tasks: list[list[WindowPayload]] = []
    for _, windows in groups:
        tasks.append(windows)
        if len(tasks) == _TASKS_PER_JOB:
            yield tasks
            tasks = []
    if tasks:
        yield tasks
