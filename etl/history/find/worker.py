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
from sluice.etl.spark.errors import report_to_client
from sluice.etl.spark.worker_tuning import freeze_gc
from sluice.relay.storage import open_storage

TASKS = pa.schema([("windows", pa.string())])
RESULTS = pa.schema([("found", pa.string())])


@dataclass(frozen=True, slots=True)
class FindInWindows:
    """Search the log at `url` in Spark's workers.

    Each input row is a batch of windows, and becomes a row with the results as JSON.
    """

    url: str
    query: Mapping[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with report_to_client():
            query = SearchQuery.from_json(self.query)
            scan = WindowSearch(open_storage(self.url), query)
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([_found(scan, query, text)])], schema=RESULTS
                    )
        freeze_gc()


def _found(scan: WindowSearch, query: SearchQuery, text: str) -> str:
    windows = BatchPayload.from_text(text).windows
    found = scan(windows[0])
    for window in windows[1:]:
        found.add(scan(window), query)
    return json.dumps(found.to_json())
