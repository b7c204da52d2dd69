"""Read tables of the lake as of any moment, in Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sluice.etl.downstream.ddl import column_type
from sluice.etl.history.as_of import AsOfTable, TableFrames, as_frames, tables_as_of
from sluice.etl.settings import Settings
from sluice.expectations.dataset import ColumnShape, TableShape
from sluice.expectations.server_shape import plain_type
from sluice.expectations.suite import REPLICATION, QualityError
from sluice.tidb import tso
from sluice.tidb.table_name import TableName, exactly, full_name

__all__ = ["LakeDataset", "open_lake_dataset", "upstream_names"]

_CONNECT = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's functions make what Spark Connect understands only if this is in the environment."""


class LakeDataset:
    """Tables by their names downstream, as suites have them."""

    on = "lake"

    def __init__(
        self,
        frames: TableFrames,
        tables: Mapping[str, AsOfTable],
        names: Mapping[str, str],
        ts: int,
    ) -> None:
        """Create the lake dataset; `names`: upstream, by those downstream."""
        self.spark = frames.spark
        self.ts = ts
        self.at_ms = tso.physical_ms(ts)
        self._frames, self._tables, self._names = frames, tables, names
        self._views: dict[str, str] = {}

    def frame(self, name: str) -> Any:
        """Return a table's frame. Raises QualityError."""
        return self._frames.tables[self._upstream(name)]

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the few rows of a query. Raises AsOfError, SparkError."""
        return self._frames.ask(statement)

    def table(self, name: str) -> str:
        """Return a table's name for a statement. Raises QualityError."""
        if name not in self._views:
            frame, view = self.frame(name), f"sluice_quality_{len(self._views)}"
            frame.createOrReplaceTempView(view)
            self._views[name] = view
        return self._views[name]

    def shape(self, name: str) -> TableShape:
        """Return a table's shape at that time, with the upstream's types. Raises QualityError."""
        found = self._tables[self._upstream(name)]
        table = found.table
        columns = tuple(
            ColumnShape(column.name, plain_type(column_type(column)), not column.not_null)
            for column in table.columns
            if column.public and not column.hidden
        )
        return TableShape(name, columns, (tuple(table.primary_key),) if table.primary_key else ())

    def tables(self) -> Sequence[str]:
        """Return the requested tables that existed."""
        return sorted(self._names)

    def _upstream(self, name: str) -> str:
        if name not in self._names:
            raise QualityError(
                f"there was no table that goes to {name} downstream as of {tso.text(self.ts)}, or"
                " more than one",
                hint="remove its file, or look at another moment",
            )
        return self._names[name]


def upstream_names(settings: Settings, ts: int, wanted: set[str]) -> dict[str, str]:
    """Return the upstream tables that existed at `ts`, by their names downstream."""
    found: dict[str, list[str]] = {}
    for upstream in tables_as_of(settings, ts, ["*"], shows_values=False).tables:
        target = settings.routes.target(*TableName.parse(upstream))
        found.setdefault(full_name(target.schema, target.table), []).append(upstream)
    single = {name: own[0] for name, own in found.items() if len(own) == 1 and name in wanted}
    if not single:
        raise QualityError(
            f"as of {tso.text(ts)} there was none of the tables {', '.join(sorted(wanted))}"
        )
    return single


@contextmanager
def open_lake_dataset(settings: Settings, ts: int, names: Sequence[str]) -> Iterator[LakeDataset]:
    """Open tables (``schema.table`` downstream) as of a TSO; 0: where the relay log ends.

    Raises QualityError, ClearValuesError, AsOfError, SparkError, relay errors.
    """
    if not ts:
        last = settings.open_relay().last()
        if last is None:
            raise QualityError("nothing is landed yet", hint="wait until replication has begun")
        ts = last.hi
    single = upstream_names(settings, ts, {name for name in names if name != REPLICATION})
    past = tables_as_of(settings, ts, [exactly(name) for name in sorted(single.values())])
    with (
        as_frames(past, settings.spark.for_batch()) as frames,
        _as_active_session(frames),
    ):
        yield LakeDataset(frames, past.tables, single, ts)


@contextmanager
def _as_active_session(frames: TableFrames) -> Iterator[None]:
    """Make the session active: Great Expectations asks PySpark for the active session.

    It also asks for functions that go with it.
    """
    os.environ.setdefault(_CONNECT, "1")
    kind: Any = type(frames.spark)
    kind._set_default_and_active_session(frames.spark)
    try:
        yield
    finally:
        kind._default_session = None
        kind._active_session.session = None
