"""Define what each kind of source of rows offers.

A source holds the rows of some tables as they were at one timestamp. It is cut into chunks, each
of which can be read by itself, anywhere, any number of times, with the same rows every time. A
chunk is a few JSON values, so that it can be written down and sent to Spark's workers; no secret
is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from sluice.etl.copy.shared_keys import SharedKey
from sluice.relay.json_codec import JsonDocument
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

_MAX_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class SourceChunk(JsonDocument):
    """Rows of one table.

    `place` locates them, in the source's own terms; `bytes` is about how much there is to read.
    `where`: conditions (`sluice.etl.changes.conditions`) that a row meets to be copied.
    """

    schema: str
    table: str
    number: int
    place: Mapping[str, Any]
    bytes: int
    where: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Return `schema.table` upstream."""
        return full_name(self.schema, self.table)

    def __str__(self) -> str:
        return f"{self.full_name} {json.dumps(dict(self.place))}"[:_MAX_SHOWN_CHARS]


@dataclass(frozen=True, slots=True)
class TableEstimate:
    """A table of a source: about how many bytes there are to read, and how many rows.

    None if that is unknown.
    """

    schema: str
    table: str
    bytes: int
    rows: int | None = None

    @property
    def full_name(self) -> str:
        """Return `schema.table` upstream."""
        return full_name(self.schema, self.table)


@runtime_checkable
class FindsSharedKeys(Protocol):
    """A source that can be asked for keys that several tables have."""

    def shared_keys(self, tables: Sequence[Table]) -> Sequence[SharedKey]:
        """Return them, two tables at a time. Raises CopyError."""


class RowSource(Protocol):
    """Rows at one timestamp. Every method raises CopyError."""

    @property
    def position(self) -> int:
        """Return the commit timestamp (TSO) as of which the rows are.

        Every transaction through it is inside, none after.
        """

    def describe(self) -> str:
        """Describe the source and its place for people; without secrets."""

    def spec(self) -> dict[str, Any]:
        """Return what `sluice.etl.copy.sources.open_source` needs to open it in another process.

        These are JSON values without secrets.
        """

    def tables(self) -> Sequence[TableEstimate]:
        """Return the tables that it holds, sorted by name."""

    def check_schema(self, table: Table) -> None:
        """Raise CopyError if the source was made from another definition than this one.

        `table`: the upstream's at the source's position.
        """

    def chunks(self, table: Table) -> Sequence[SourceChunk]:
        """Return the chunks of a table, numbered from 0; the same ones each time."""

    def brings(self, table: Table) -> frozenset[str]:
        """Return the names of the stored generated columns that all its rows of the table hold."""

    def read(self, chunk: SourceChunk, table: Table) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk, in types and texts of `sluice.tidb.rows.arrow_schema`.

        One column for each of `table.writable_columns` and of what it brings, in table order.
        """
