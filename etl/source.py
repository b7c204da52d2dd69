"""The Spark data source ``pump_window``: committed transactions of a window, straight from the pumps.

Options: `cluster_id`, and `ranges`: a JSON list of ``{"host": "ip:port", "lo": tso, "hi": tso}``. Each range is one
partition; its rows are (commit_ts, start_ts, payload), ascending by commit_ts, payload = the Prewrite binlog as TiDB sent
it. Partitions are in the order of `ranges`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl._spark_worker import settle

if TYPE_CHECKING:
    from upstream import PumpReader

SOURCE_NAME = "pump_window"
SOURCE_SCHEMA = "commit_ts long, start_ts long, payload binary"
# What Spark demands of SOURCE_SCHEMA's batches: nullable, and 32-bit offsets.
_ARROW_SCHEMA = pa.schema([("commit_ts", pa.int64()), ("start_ts", pa.int64()), ("payload", pa.binary())])
_READ_TIMEOUT_S = 30.0

# Python workers are used again for later windows; so are their connections.
_readers: dict[tuple[str, int], PumpReader] = {}


@dataclass(frozen=True, slots=True)
class PumpRange:
    """The commits in (lo, hi] (TSO) on the pump at `host` ("ip:port")."""

    host: str
    lo: int
    hi: int

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def source_options(cluster_id: int, ranges: Sequence[PumpRange]) -> dict[str, str]:
    """Options for ``spark.read.format("pump_window").options(**...)``."""
    return {"cluster_id": str(cluster_id), "ranges": json.dumps([item.to_dict() for item in ranges])}


class PumpPartition(InputPartition):
    """One range to read."""

    def __init__(self, cluster_id: int, range_: PumpRange) -> None:
        super().__init__(None)
        self.cluster_id = cluster_id
        self.range = range_


class PumpWindowReader(DataSourceReader):
    """Reads ranges in Spark's Python workers."""

    def __init__(self, cluster_id: int, ranges: Sequence[PumpRange]) -> None:
        self._cluster_id = cluster_id
        self._ranges = list(ranges)

    def partitions(self) -> Sequence[InputPartition]:
        settle()
        return [PumpPartition(self._cluster_id, item) for item in self._ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PumpPartition)
        wanted = partition.range
        for batch in read_range(wanted.host, partition.cluster_id, wanted.lo, wanted.hi):
            yield batch.cast(_ARROW_SCHEMA)
        settle()


class PumpWindowSource(DataSource):
    """Register with ``spark.dataSource.register(PumpWindowSource)``."""

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> str:
        return SOURCE_SCHEMA

    def reader(self, schema: object) -> DataSourceReader:
        try:
            cluster_id = int(self.options["cluster_id"])
            ranges = [PumpRange(str(raw["host"]), int(raw["lo"]), int(raw["hi"])) for raw in json.loads(self.options["ranges"])]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{SOURCE_NAME}: options cluster_id and ranges are needed, got {dict(self.options)}") from error
        return PumpWindowReader(cluster_id, ranges)


def read_range(host: str, cluster_id: int, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    """The commits in (lo, hi] of a pump, as record batches (commit_ts, start_ts, payload).

    A pump that doesn't offer the bulk read is read through PullBinlogs; which of the two it is is asked each time, because one
    may have taken the other's place. Raises upstream.PumpReadError, also if the pump sends a commit outside of the range.
    """
    from upstream import PumpReader, PumpReadError

    key = (host, cluster_id)
    reader = _readers.get(key)
    if reader is None:
        reader = _readers[key] = PumpReader(host, cluster_id, timeout_s=_READ_TIMEOUT_S)
    last = lo
    try:
        for batch in _read(reader, lo, hi):
            if not batch.num_rows:
                continue
            commits = batch["commit_ts"]
            first, final = commits[0].as_py(), commits[batch.num_rows - 1].as_py()
            if first <= last or final > hi:
                raise PumpReadError(f"pump {host}: asked for ({lo}, {hi}], it sent commits {first} to {final} after {last}")
            last = final
            yield batch
    except PumpReadError:
        _readers.pop(key, None)
        reader.close()
        raise


def _read(reader: PumpReader, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    from upstream import PumpReadError
    from upstream.pulled_window import pulled_window

    try:
        yield from reader.read(lo, hi)
        return
    except PumpReadError as error:
        if not error.unimplemented:
            raise
    if lo < hi:
        yield from pulled_window(reader, lo, hi)
