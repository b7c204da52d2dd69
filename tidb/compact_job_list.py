"""Many DDL jobs in little memory, in the order in which they changed the schema.

TiDB never forgets a DDL job, and each carries the whole TableInfo: of a table with 40 columns 27 KB
of JSON, three times as much once it is parsed. So jobs are kept as TiKV gave them, compressed, and
parsed again one at a time. The history has them by id, which is the order in which they were begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, Self

import pyarrow as pa

from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import parse_object

_CODEC = "zstd"


class _CompactJob(NamedTuple):
    schema_version: int
    finished_ts: int
    id: int
    size: int
    data: bytes


class CompactJobList:
    """The jobs of a history; those that changed nothing are known by their ids alone."""

    def __init__(self) -> None:
        self._finished: list[_CompactJob] = []
        self._without_effect: set[int] = set()

    @classmethod
    def from_jobs(cls, jobs: Iterable[tuple[int, bytes]]) -> Self:
        """Parse jobs from their ids and TiDB's JSON. Raises HistoryError, SchemaError."""
        packed = cls()
        codec = pa.Codec(_CODEC, compression_level=1)
        for job_id, data in jobs:
            job = _parse(job_id, data)
            if job.finished:
                small = codec.compress(data, asbytes=True)
                packed._finished.append(
                    _CompactJob(job.schema_version, job.finished_ts, job_id, len(data), small)
                )
            else:
                packed._without_effect.add(job_id)
        packed._finished.sort(key=lambda each: each.schema_version)
        return packed

    def __len__(self) -> int:
        return len(self._finished) + len(self._without_effect)

    @property
    def first_version(self) -> int | None:
        """Return the lowest schema version that one of them left behind, None if none did."""
        return self._finished[0].schema_version if self._finished else None

    def version_at(self, ts: int) -> int:
        """Return the highest schema version of the jobs that had ended by `ts` (TSO), or 0."""
        return max(
            (each.schema_version for each in self._finished if each.finished_ts <= ts), default=0
        )

    def through(
        self, schema_version: int, without: Collection[int] = frozenset()
    ) -> Iterator[DdlHistoryJob]:
        """Yield the jobs that left a version behind, through `schema_version`, ascending.

        `without` the jobs of these ids.
        """
        return (
            _unpack(each)
            for each in self._finished
            if each.schema_version <= schema_version and each.id not in without
        )

    def ended_behind(self, ts: int, schema_version: int) -> Iterator[DdlHistoryJob]:
        """Yield the jobs through `schema_version` that ended behind a TSO.

        DDL of a higher version may nevertheless be older.
        """
        return (
            _unpack(each)
            for each in self._finished
            if each.schema_version <= schema_version and each.finished_ts > ts
        )

    def after(self, schema_version: int) -> Iterator[DdlHistoryJob]:
        """Yield the jobs that left a later version behind, ascending."""
        return (_unpack(each) for each in self._finished if each.schema_version > schema_version)

    def ids_through(self, schema_version: int, without: Collection[int] = frozenset()) -> set[int]:
        """Return the ids of the jobs that a schema of that version contains.

        They are those of the jobs through it, and of those that changed nothing.
        """
        known = {
            each.id
            for each in self._finished
            if each.schema_version <= schema_version and each.id not in without
        }
        return known | self._without_effect


def _unpack(packed: _CompactJob) -> DdlHistoryJob:
    data = pa.decompress(packed.data, decompressed_size=packed.size, codec=_CODEC, asbytes=True)
    return _parse(packed.id, data)


def _parse(job_id: int, data: bytes) -> DdlHistoryJob:
    return DdlHistoryJob.from_json(parse_object(data, f"DDL job {job_id}"))
