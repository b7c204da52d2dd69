"""The data source: ``spark.read.format("sluice")`` and ``spark.readStream.format("sluice")``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from sluice.etl.spark.remote_workers import with_credentials
from sluice.spark.columns import ChangeColumns, find_table
from sluice.spark.portions import PortionReader, partitions
from sluice.spark.query import ChangeQuery, check_range
from sluice.spark.stream import ChangeStreamReader, StreamOptions

__all__ = ["SluiceDataSource", "register"]

FORMAT = "sluice"


def register(spark: Any) -> None:
    """Make the format known to a session, classic or Connect."""
    spark.dataSource.register(SluiceDataSource)


class SluiceDataSource(DataSource):  # type: ignore[misc] # pyspark has no types here
    """The changes of a table between two moments, each once.

    The options: `sluice.spark.query` and `sluice.spark.stream`. A frame shows what had landed when
    it was loaded, however often it is used.
    """

    _columns: ChangeColumns | None = None
    _query: ChangeQuery | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table as of ``until``. Raises ChangesError, relay errors."""
        self._query = ChangeQuery.from_options(self.options).bound()
        assert self._query.until is not None
        table = find_table(self._query.past(), self._query.table, self._query.until)
        self._columns = ChangeColumns.of_table(table, self._query.until)
        return self._columns.schema

    def reader(self, schema: StructType) -> ChangeReader:
        """Return the reader of a batch. Raises ChangesError, relay errors."""
        query = self._query or ChangeQuery.from_options(self.options).bound()
        check_range(query.past(), query.since or 0, query.until or 0)
        return ChangeReader(PortionReader(query, self._columns or ChangeColumns(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream. Raises ChangesError, relay errors."""
        return ChangeStreamReader(
            ChangeQuery.from_options(self.options),
            self._columns or ChangeColumns(schema),
            StreamOptions.from_options(self.options),
        )


class ChangeReader(DataSourceReader):  # type: ignore[misc]
    """Read the changes of a bound query.

    It takes no filters over: Spark 4.3 keeps what a source has read its first filters into, and
    reads the same where the frame is used again, with other filters or none.
    """

    def __init__(self, portions: PortionReader) -> None:
        self._portions = portions
        self._read = with_credentials(portions)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition a portion."""
        query = self._portions.query
        assert query.since is not None and query.until is not None
        return partitions(query.past(), query.table, query.since, query.until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition. Spark gives one without a value if there is none."""
        yield from self._read(iter([partition.value] if partition.value else []))
