"""Read the rows of a window whose record landing makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc


class WindowRows:
    """The rows of a window that is being landed, read again by each call: few windows need one."""

    def __init__(self, batches: Callable[[], Iterable[pa.RecordBatch]] = lambda: ()) -> None:
        """`batches` returns the window's changes, in RELAY_SCHEMA, each part in ascending
        commit_ts.
        """
        self._batches = batches

    def first_by_version(self, table_id: int) -> list[tuple[int, int]]:
        """Return (schema version, first commit_ts) of a table's rows, ascending commit_ts."""
        found: dict[int, int] = {}
        for batch in self._batches():
            own = batch.filter(pc.equal(batch["table_id"], table_id))
            for version, commit_ts in zip(
                own["schema_version"].to_pylist(), own["commit_ts"].to_pylist(), strict=True
            ):
                found[version] = min(commit_ts, found.get(version, commit_ts))
        return sorted(found.items(), key=lambda item: item[1])

    def commits(self, table_id: int | None = None) -> set[int]:
        """Return the commit_ts of all transactions with rows, or of those with rows of one table."""
        found: set[int] = set()
        for batch in self._batches():
            own = batch if table_id is None else batch.filter(pc.equal(batch["table_id"], table_id))
            found.update(own["commit_ts"].unique().to_pylist())
        return found
