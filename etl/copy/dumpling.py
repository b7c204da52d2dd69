"""Read rows from a Dumpling folder: `.sql` or `.csv`, plain or compressed, local or remote.

Remote is an object store. A chunk is a file; a large plain one is cut where rows end. With
backslash escapes no value holds a newline, so that each one ends a row, and a cut needs no look at
what is before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from sluice.etl.changes.masks import masks_of
from sluice.etl.copy._csv_rows import CsvFormat, CsvRows, detect_format
from sluice.etl.copy._dump_file import (
    ByteRange,
    compression,
    read_decompressed,
    read_head,
    split_points,
)
from sluice.etl.copy._dump_folder import METADATA, DumpListing, list_folder, read_position
from sluice.etl.copy._fields import FieldPositions
from sluice.etl.copy._sql_rows import RowStats, SqlRows
from sluice.etl.copy._values import (
    SQL_DOUBLED_SYNTAX,
    SQL_SYNTAX,
    ValueRefused,
    ValueSyntax,
    column_array,
    csv_syntax,
)
from sluice.etl.copy.errors import CopyError, DumpError
from sluice.etl.copy.source import SourceChunk, TableEstimate
from sluice.relay import RelayError
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import open_storage
from sluice.tidb import column_types
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table

__all__ = ["CsvFormat", "DumplingFolder", "DumplingOptions"]

CHUNK_BYTES = 32 << 20
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class DumplingOptions(JsonDocument):
    """Options of a dump that its files don't have.

    `escapes`: backslash escapes, Dumpling's default. `chunk_bytes`: larger plain files are cut.
    """

    JSON_COMPLETE: ClassVar = True

    csv: CsvFormat = field(default_factory=CsvFormat)
    escapes: bool = True
    chunk_bytes: int = CHUNK_BYTES


class DumplingFolder:
    """The folder at a URL; see `sluice.etl.copy.source.RowSource`."""

    def __init__(
        self, url: str, options: DumplingOptions, listing: DumpListing, position: int
    ) -> None:
        self._url = url
        self._storage = _open(url)
        self._options = replace(options, csv=replace(options.csv, escapes=options.escapes))
        self._listing = listing
        self.position = position
        self._form: CsvFormat | None = None
        self.stats = RowStats()
        """Counts of how the rows that were read were parsed."""

    @classmethod
    def open(cls, url: str, options: DumplingOptions | None = None) -> Self:
        """Look into the folder. Raises CopyError, DumpError, OSError."""
        options = options or DumplingOptions()
        options.csv.check()
        storage = _open(url)
        try:
            sizes = storage.sizes("")
        except NotADirectoryError:
            raise CopyError(
                f"{url} is a file: give the folder that Dumpling wrote (its -o, or --output)"
            ) from None
        if not sizes:
            raise CopyError(
                f"{url}: no such folder, or no files in it. Give the folder that Dumpling wrote; it"
                " must be reachable under the same path from here and from Spark's workers"
            )
        metadata = storage.read(METADATA) if METADATA in sizes else None
        position = read_position(url, sizes, metadata)
        return cls(url, options, list_folder(url, sizes), position)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the folder in another process; nothing is looked up."""
        return cls(
            spec["url"], DumplingOptions.from_json(spec["options"]), DumpListing(), spec["position"]
        )

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "dumpling",
            "url": self._url,
            "options": self._options.to_json(),
            "position": self.position,
        }

    def describe(self) -> str:
        return f"Dumpling folder {self._url}"

    @property
    def listing(self) -> DumpListing:
        """Return the files, by table."""
        return self._listing

    def tables(self) -> list[TableEstimate]:
        return [
            TableEstimate(*name, sum(file.bytes for file in self._listing.rows.get(name, ())))
            for name in self._listing.tables()
        ]

    def check_schema(self, table: Table) -> None:
        name = self._listing.schemas.get((table.schema_name, table.name))
        if name is not None:
            text = b"".join(read_decompressed(self._storage, name)).decode("utf-8", "replace")
            check_schema_file(name, text, table)

    def chunks(self, table: Table) -> list[SourceChunk]:
        places: list[tuple[dict[str, Any], int]] = []
        form: CsvFormat | None = None
        for file in self._listing.rows.get((table.schema_name, table.name), ()):
            place: dict[str, Any] = {"file": file.name, "form": file.form}
            if file.form == "csv":
                form = form or self._detected_format(file.name, table)
                place["csv"] = form.to_json()
            ends = self._row_ends(form)
            if compression(file.name) or not ends or file.bytes <= self._options.chunk_bytes:
                places.append((place, file.bytes))
                continue
            for lo, hi in split_points(
                self._storage, file.name, file.bytes, ends, self._options.chunk_bytes
            ):
                places.append(({**place, "range": [lo, hi], "size": file.bytes}, hi - lo))
        return [
            SourceChunk(table.schema_name, table.name, number, place, size)
            for number, (place, size) in enumerate(places)
        ]

    def _row_ends(self, form: CsvFormat | None) -> tuple[bytes, ...]:
        if not self._options.escapes:
            return ()
        if form is None:
            return (b"),\n", b");\n")
        return (form.terminator.encode(),) if form.terminator in ("\n", "\r\n") else ()

    def _detected_format(self, file: str, table: Table) -> CsvFormat:
        """Return a file's CSV format.

        It is that of other files of the folder, unless its header differs.
        """
        given = self._options.csv
        if given.is_known:
            return given
        names, begin = _names(table), read_head(self._storage, file, _HEAD_BYTES)
        if self._form is not None and begin.startswith(self._form.header_line(names)):
            return self._form
        form = detect_format(file, begin, names, given, quotes_text=not masks_of(table))
        if len(names) > 1:
            self._form = form
        return form

    def brings(self, table: Table) -> frozenset[str]:
        return frozenset()  # Dumpling leaves out what TiDB computes

    def read(self, chunk: SourceChunk, table: Table) -> Iterator[pa.RecordBatch]:
        place = chunk.place
        file = str(place["file"])
        lo, hi = place.get("range") or (0, None)
        span = ByteRange(lo, hi, place.get("size"))
        rows: SqlRows | CsvRows
        if place["form"] == "sql":
            spelling = SQL_SYNTAX if self._options.escapes else SQL_DOUBLED_SYNTAX
            rows = SqlRows(
                file,
                _names(table),
                self._options.escapes,
                in_rows=lo > 0,
                offset=lo,
                stats=self.stats,
                quotes_text=not masks_of(table),
            )
        else:
            form = CsvFormat(**place["csv"])
            assert form.separator is not None and form.delimiter is not None
            spelling = csv_syntax(
                form.delimiter.encode(),
                form.separator.encode(),
                form.null.encode(),
                escapes=form.escapes,
            )
            rows = CsvRows(
                file,
                _names(table),
                form,
                at_header=form.header and lo == 0,
                offset=lo,
                stats=self.stats,
                quotes_text=not masks_of(table),
            )
        for piece in read_decompressed(self._storage, file, span):
            for names, fields, offset in rows.feed(piece):
                if len(fields.start):
                    yield _batch(table, names, fields, (file, offset), spelling)
        rows.finish(whole=span.ends_file)


def _open(url: str) -> Any:
    try:
        return open_storage(url)
    except RelayError as error:
        raise CopyError(str(error).replace("relay URL", "dump URL")) from None


def _names(table: Table) -> list[str]:
    """Return the columns that a dump has, those among them that rules leave out downstream."""
    return [
        column.source_name
        for column in table.columns
        if (column.public or column.upstream_name) and not column.generated
    ]


def _batch(
    table: Table,
    names: Sequence[str],
    fields: FieldPositions,
    where: tuple[str, int],
    spelling: ValueSyntax,
) -> pa.RecordBatch:
    """Return fields, in the order of `names`, as a batch in the table's order of columns."""
    file, offset = where
    at = {folded(name): number for number, name in enumerate(names)}
    columns = table.writable_columns
    if len(at) != len(names) or at.keys() != set(map(folded, _names(table))):
        raise DumpError(
            file,
            offset,
            f"rows with the columns {', '.join(names)}; {table.full_name} has"
            f" {', '.join(_names(table))} at the dump's position",
        )
    arrays = []
    for column in columns:
        index = at[folded(column.source_name)]
        try:
            arrays.append(column_array(column, fields, index, spelling))
        except ValueRefused as error:
            place = offset + int(fields.start[error.row, index])
            raise DumpError(file, place, f"{table.full_name}.{column.name}: {error.what}") from None
    schema = pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_COLUMN = re.compile(
    r"^  `((?:[^`]|``)+)` ((?:[^\s('`]|\((?:[^()']|'(?:[^'\\]|\\.|'')*')*\))+)", re.MULTILINE
)
_TYPES = column_types.NAMES | {column_types.VAR_STRING: "varchar"}


def check_schema_file(file: str, text: str, table: Table) -> None:
    """Raise CopyError if the CREATE TABLE in `text` has other columns than `table`.

    Dumpling writes SHOW CREATE TABLE, a column a line. Tables are never made from it.
    """
    there = [
        (name.replace("``", "`"), _base_column_type(kind)) for name, kind in _COLUMN.findall(text)
    ]
    wanted = [
        (c.name, _column_type(c.tp, is_bytes=c.kind == "binary"))
        for c in table.columns
        if c.public and not c.hidden
    ]
    if there == wanted:
        return
    odd = next(
        (f"{a[0]} {a[1]} instead of {b[0]} {b[1]}" for a, b in zip(there, wanted) if a != b), ""
    )
    what = odd or f"{len(there)} columns instead of {len(wanted)}"
    raise CopyError(
        f"{file}: {table.full_name} is another table there than TiDB had at the dump's position:"
        f" {what}. Was the table altered while it was dumped, or is the dump of another cluster?"
        " Dump again"
    )


def _base_column_type(kind: str) -> str:
    return kind.split("(", 1)[0].lower()


def _column_type(tp: int, *, is_bytes: bool) -> str:
    name = _TYPES.get(tp, "?")
    return column_types.BYTES_NAMES.get(name, name) if is_bytes else name
