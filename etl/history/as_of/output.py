"""Write rows of the past: Parquet, CSV, JSON and SQL files, or text on the screen."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from sluice.errors import RequestError
from sluice.etl.changes.formats.sql_columns import (
    hex_column,
    invalid_utf8_mask,
    join,
    literal_column,
)
from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.tidb.schema import Table

__all__ = [
    "FORMATS",
    "TableOutput",
    "broken_columns",
    "file_name",
    "file_output",
    "open_output_at",
    "render_rows",
    "screen_output",
    "with_file_name",
]

_STATEMENT_BYTES = 512 << 10
"""The approximate size of a statement, or it has one row: servers take at least 1 MiB
(max_allowed_packet).
"""
_SET_SQL_MODE = b"sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';\n"
"""Each value is taken as it is: an id 0, a date that isn't in the calendar."""
_SESSION_SETTINGS = (
    b"SET NAMES utf8mb4, time_zone = '+00:00', foreign_key_checks = 0, " + _SET_SQL_MODE
)
_SET_STRICT_MODE = b"SET sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES');\n"
"""A column of text cuts off text that isn't UTF-8; so it refuses that."""


class TableOutput(Protocol):
    """Receive the rows of one table."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write some rows, in the schema that the output was made for."""

    def close(self) -> None:
        """Finish the output."""


class _ParquetOutput:
    def __init__(self, sink: BinaryIO, schema: pa.Schema, table: Table) -> None:
        self._writer = pq.ParquetWriter(sink, schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _CsvOutput:
    """A header, then a row a line.

    NULL is nothing at all, text is in quotes, bytes are 0x and digits.
    """

    def __init__(self, sink: BinaryIO, schema: pa.Schema, table: Table) -> None:
        self._schema = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])
        self._writer = pa_csv.CSVWriter(sink, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_csv_column(column) for column in batch.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _csv_type(kind: pa.DataType) -> pa.DataType:
    return (
        pa.large_binary()
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        else kind
    )


def _csv_column(column: pa.Array) -> pa.Array:
    if pa.types.is_large_binary(column.type):
        return join(b"0x", hex_column(column))
    if pa.types.is_large_string(column.type) and (broken := invalid_utf8_mask(column)) is not None:
        raw = column.cast(pa.large_binary())
        # as bytes are: no text represents them
        return pc.if_else(broken, join(b"0x", hex_column(raw)), raw)
    return column.cast(_csv_type(column.type))


class _SqlOutput:
    """Write INSERT statements for an existing table, without columns that it computes itself."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema, table: Table) -> None:
        self._sink = sink
        self._columns = [column for column in table.writable_columns if column.name in schema.names]
        names = ", ".join(quote_name(column.name) for column in self._columns)
        self._head = f"INSERT INTO {quote_table(table)} ({names}) VALUES\n".encode()
        sink.write(_SESSION_SETTINGS)

    def write(self, batch: pa.RecordBatch) -> None:
        is_broken = bool(broken_columns(batch))
        if is_broken:
            self._sink.write(_SET_STRICT_MODE)
        self._write(batch)
        if is_broken:
            self._sink.write(b"SET " + _SET_SQL_MODE)

    def _write(self, batch: pa.RecordBatch) -> None:
        values = [
            literal_column(_full_doubles(batch.column(column.name)), column)
            for column in self._columns
        ]
        lines = (
            join(b"(", join(*values, separator=b", "), b")").to_pylist()
            if values
            else [b"()"] * batch.num_rows
        )
        first = size = 0
        for number, line in enumerate(lines):
            if number > first and size + len(line) > _STATEMENT_BYTES:
                self._sink.write(self._head + b",\n".join(lines[first:number]) + b";\n")
                first, size = number, 0
            size += len(line) + 2
        if lines:
            self._sink.write(self._head + b",\n".join(lines[first:]) + b";\n")

    def close(self) -> None: ...


class _JsonOutput:
    """A row a line: an object with the table's name and the row's values by column.

    Numbers are JSON's, but DECIMAL is text; bytes, and text that isn't UTF-8, are 0x and digits.
    """

    def __init__(self, sink: BinaryIO, schema: pa.Schema, table: Table) -> None:
        self._sink, self._table, self._names = sink, table.full_name, schema.names

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_json_values(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            row = {"table": self._table, "row": dict(zip(self._names, values, strict=True))}
            self._sink.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None: ...


def _json_values(column: pa.Array) -> list[Any]:
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        values = _csv_column(column).to_pylist()
        return [None if value is None else value.decode() for value in values]
    values = column.to_pylist()
    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return values if plain else [None if value is None else str(value) for value in values]


def broken_columns(batch: pa.RecordBatch) -> set[str]:
    """Return the names of the columns with text that isn't UTF-8."""
    return {
        field.name
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if pa.types.is_large_string(field.type) and invalid_utf8_mask(column) is not None
    }


def _full_doubles(array: pa.Array) -> pa.Array:
    """Cast a FLOAT to the double that it equals: with all its digits."""
    return array.cast(pa.float64()) if pa.types.is_float32(array.type) else array


FORMATS: Mapping[str, Callable[[BinaryIO, pa.Schema, Table], TableOutput]] = {
    "parquet": _ParquetOutput, "csv": _CsvOutput, "sql": _SqlOutput,
}  # fmt: skip
"""The formats by their names on the command line, which are the files' endings, too."""
_ALL_FORMATS = {**FORMATS, "json": _JsonOutput}
"""Those of `sluice as-of`: JSON is for scripts, and a restore can't be loaded from it."""


def file_name(name: str, ending: str) -> str:
    """Return the name of the file with a table `name`."""
    return f"{quote(name, safe='._-')}.{ending}"


@contextlib.contextmanager
def file_output(
    folder: Path, kind: str, name: str, schema: pa.Schema, table: Table
) -> Iterator[TableOutput]:
    """Create a file for a table `name`, complete when the context ends without an error.

    With an error there is no file. Raises RequestError if it exists already.
    """
    path = folder / file_name(name, kind)
    if path.exists():
        raise RequestError(f"{path} exists", hint="name another folder, or remove it")
    partial = path.with_name(f"{path.name}.partial")
    try:
        with open_output_at(partial, kind, schema, table) as output:
            yield output
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def open_output_at(path: Path, kind: str, schema: pa.Schema, table: Table) -> Iterator[TableOutput]:
    """Create or replace a file.

    It is complete when the context ends without an error. Errors of the system name it.
    """
    sink = path.open("wb")
    try:
        output = _NamedOutput(path, _ALL_FORMATS[kind](sink, schema, table))
        try:
            yield output
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the cause
                output.close()
            raise
        output.close()
    finally:
        with with_file_name(path):
            sink.close()


class _NamedOutput:
    """An output whose errors name its file."""

    def __init__(self, path: Path, output: TableOutput) -> None:
        self._path = path
        self._output = output

    def write(self, batch: pa.RecordBatch) -> None:
        with with_file_name(self._path):
            self._output.write(batch)

    def close(self) -> None:
        with with_file_name(self._path):
            self._output.close()


@contextlib.contextmanager
def with_file_name(path: Path) -> Iterator[None]:
    """Add this path to errors of the system that name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def screen_output(kind: str, schema: pa.Schema, table: Table) -> Iterator[TableOutput]:
    """Write the output to standard output."""
    output = _ALL_FORMATS[kind](sys.stdout.buffer, schema, table)
    yield output
    output.close()


def render_rows(names: Sequence[str], batch: pa.RecordBatch) -> Iterator[list[str]]:
    """Yield rows as people read them."""
    columns = [_texts(batch.column(name)) for name in names]
    yield from (list(row) for row in zip(*columns, strict=True))


def _texts(array: pa.Array) -> list[str]:
    if pa.types.is_large_binary(array.type):
        return ["NULL" if value is None else f"0x{value.hex()}" for value in array.to_pylist()]
    if pa.types.is_large_string(array.type) and invalid_utf8_mask(array) is not None:
        raw: list[Any] = array.cast(pa.large_binary()).to_pylist()
        return [
            "NULL" if value is None else value.decode("utf-8", "backslashreplace") for value in raw
        ]
    return ["NULL" if value is None else str(value) for value in array.to_pylist()]
