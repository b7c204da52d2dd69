"""Read the rows of a window whose record landing makes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc


class WindowRows:
    """The rows of a window that is being landed, read when they are first asked for."""

    def __init__(self, batches: Callable[[], Iterable[pa.RecordBatch]] = lambda: ()) -> None:
        """Keep `batches`, which returns the window's changes in RELAY_SCHEMA.

        Each part is in ascending commit_ts.
        """
        self._batches = batches
        self._commits: dict[int | None, frozenset[int]] = {}

    def first_by_version(self, table_id: int) -> list[tuple[int, int]]:
        """Return (schema version, first commit_ts) of a table's rows, ascending commit_ts."""
        return sorted(self._firsts.get(table_id, ()), key=lambda item: item[1])

    @functools.cached_property
    def _firsts(self) -> dict[int, list[tuple[int, int]]]:
        """Return each schema version's first commit_ts by table id, from one reading."""
        keys, ts = ["table_id", "schema_version"], "commit_ts"
        firsts = [
            pa.Table.from_batches([batch.select([*keys, ts])])
            .group_by(keys)
            .aggregate([(ts, "min")])
            for batch in self._batches()
        ]
        found: dict[int, list[tuple[int, int]]] = {}
        if firsts:
            whole = pa.concat_tables(firsts).group_by(keys).aggregate([(f"{ts}_min", "min")])
            for row in whole.to_pylist():
                first = row["schema_version"], row[f"{ts}_min_min"]
                found.setdefault(row["table_id"], []).append(first)
        return found

    def commits(self, table_id: int | None = None) -> frozenset[int]:
        """Return the commit_ts of all transactions with rows, or with rows of one table."""
        if table_id in self._commits:  # each table without a DDL asks for those of all
            return self._commits[table_id]
        found: set[int] = set()
        for batch in self._batches():
            own = batch if table_id is None else batch.filter(pc.equal(batch["table_id"], table_id))
            found.update(own["commit_ts"].unique().to_pylist())
        return self._commits.setdefault(table_id, frozenset(found))
