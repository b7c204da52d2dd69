"""Search windows in Spark's Python workers.

Spark finds it by this module's path, so nothing is imported here that the client alone needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.etl.changes.planning import BatchPayload
from sluice.etl.history.find.query import SearchQuery
from sluice.etl.history.find.scan import WindowSearch
from sluice.etl.spark.worker_tuning import column_values, text_batch, worker_function
from sluice.relay.storage import open_storage


@dataclass(frozen=True, slots=True)
class FindInWindows:
    """Search the log at `url` in Spark's workers.

    Each input row is a batch of windows, and becomes a row with the results as JSON.
    """

    url: str
    query: Mapping[str, Any]

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query = SearchQuery.from_json(self.query)
        scan = WindowSearch(open_storage(self.url), query)
        for text in column_values(batches):
            yield text_batch(_found(scan, query, text))


def _found(scan: WindowSearch, query: SearchQuery, text: str) -> str:
    windows = BatchPayload.from_text(text).windows
    found = scan(windows[0])
    for window in windows[1:]:
        found.add(scan(window), query)
    return json.dumps(found.to_json())
