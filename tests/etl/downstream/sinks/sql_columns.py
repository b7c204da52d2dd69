"""Columns of TiDB as Flink SQL and Spark SQL declare them, and what the values mean that arrive.

The types are those of docs/how-to/consumers. A value comes out as text.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sluice.etl.changes.messages.message import shown_columns
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.recorded_messages import Row, meaning
from tests.etl.downstream.sinks.recorded_topics import Sent

MAX_PRECISION = 38
"""The most digits of Flink's DECIMAL."""
_EPOCH = datetime.datetime(1970, 1, 1)
_AS_TEXT = "CAST({} AS STRING)"
_AS_LATIN_1 = "DECODE({}, 'ISO-8859-1')"
_SETTINGS = {
    "canal-json": {"format": "canal-json"},
    "debezium-json": {
        "format": "debezium-json",
        "debezium-json.timestamp-format.standard": "ISO-8601",
    },
    "debezium-avro": {"format": "debezium-avro-confluent"},
}


class Arrival(NamedTuple):
    """A column: its type in Flink, what its text means, and the expression that makes the text.

    Spark calls BYTES BINARY, and TIMESTAMP_LTZ TIMESTAMP.
    """

    type: str
    read: Callable[[str], Any]
    show: str = _AS_TEXT


def create_table(name: str, table: Table, sent: Sent) -> str:
    """Return the statement that declares a table's topic as `name`."""
    columns = [f"{quoted(c.name)} {arrival(sent, c).type}" for c in shown_columns(table)]
    options = {
        "connector": "kafka",
        "topic": sent.topics[table.full_name],
        "properties.bootstrap.servers": sent.options.brokers,
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        **_SETTINGS[sent.options.format],
    }
    if sent.options.debezium_schema:
        options["debezium-json.schema-include"] = "true"
    if sent.options.registry_url:
        options["debezium-avro-confluent.url"] = sent.options.registry_url
    settings = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in options.items())
    return f"CREATE TEMPORARY TABLE {quoted(name)} ({', '.join(columns)}) WITH ({settings})"


def select_rows(name: str, table: Table, sent: Sent) -> str:
    """Return a query for the table's full name and a JSON object of each row's texts."""
    fields = ", ".join(
        f"{literal(c.name)} VALUE {arrival(sent, c).show.format(quoted(c.name))}"
        for c in shown_columns(table)
    )
    row = f"JSON_OBJECT({fields})"
    return f"SELECT CAST({literal(table.full_name)} AS STRING), {row} FROM {quoted(name)}"


def read_row(text: str, columns: Mapping[str, Arrival]) -> Row:
    """Return the meaning of a row, a JSON object of texts."""
    return {
        name: None if value is None else columns[name].read(value)
        for name, value in json.loads(text).items()
    }


def arrival(sent: Sent, column: Column) -> Arrival:
    """Return how a column arrives in the format that was sent."""
    if sent.options.format == "canal-json":
        return _of_canal(column)
    if sent.options.format == "avro":
        return _of_avro(column)
    return _of_debezium(column, is_avro=sent.options.format == "debezium-avro")


def _of_avro(column: Column) -> Arrival:
    """Return how a column arrives in `avro`, whose schema has the types."""

    def read(text: str) -> Any:
        return meaning(text, column.kind)

    match column.kind:
        case "bit":
            return Arrival("", lambda text: int.from_bytes(text.encode("latin-1")), _AS_LATIN_1)
        case "decimal" if column.flen > MAX_PRECISION:
            scale = max(column.decimal, 0)
            return Arrival("", lambda text: read(_unscaled(text, scale)), _AS_LATIN_1)
        case "binary":
            return Arrival("", lambda text: text.encode("latin-1"), _AS_LATIN_1)
        case _:
            return Arrival("", read)


def _of_canal(column: Column) -> Arrival:
    elements = column.elems

    def read(text: str) -> Any:
        return meaning(text, column.kind)

    match column.kind:
        case "int" | "year" | "bit":
            return Arrival(_integer(column), read)
        case "enum":
            return Arrival("INT", lambda text: _text(elements[int(text) - 1] if int(text) else ""))
        case "set":
            return Arrival("DECIMAL(20, 0)", lambda text: _text(_members(elements, int(text))))
        case "decimal" if column.flen <= MAX_PRECISION:
            return Arrival(f"DECIMAL({column.flen}, {max(column.decimal, 0)})", read)
        case "float" | "double":
            return Arrival(column.kind.upper(), read)
        case "binary":
            return Arrival("STRING", lambda text: text.encode("latin-1"))
        case _:
            return Arrival("STRING", read)


def _of_debezium(column: Column, *, is_avro: bool) -> Arrival:
    def read(text: str) -> Any:
        return meaning(text, column.kind)

    match column.kind:
        case "int" if column.unsigned and column.tp == types.BIGINT and is_avro:
            return Arrival("STRING", read)
        case "int" | "year":
            return Arrival(_integer(column), read)
        case "bit" if column.flen <= 1:
            return Arrival("BOOLEAN", lambda text: int(text.upper() == "TRUE"))
        case "bit":
            return Arrival("BYTES", _little_endian, _AS_LATIN_1)
        case "decimal" if column.flen <= MAX_PRECISION:
            return Arrival(f"DECIMAL({column.flen}, {max(column.decimal, 0)})", read)
        case "decimal" if is_avro:
            scale = max(column.decimal, 0)
            return Arrival("BYTES", lambda text: read(_unscaled(text, scale)), _AS_LATIN_1)
        case "float" | "double":
            return Arrival(column.kind.upper(), read)
        case "binary":
            return Arrival("BYTES", lambda text: text.encode("latin-1"), _AS_LATIN_1)
        case "date":
            return Arrival("INT", lambda text: str((_EPOCH + _micros(int(text), 86_400)).date()))
        case "datetime":
            unit = 0.001 if column.fsp <= 3 else 0.000_001
            return Arrival("BIGINT", lambda text: read(_moment(int(text), unit)))
        case "timestamp" if is_avro:
            return Arrival("STRING", lambda text: read(text.removesuffix("Z").replace("T", " ")))
        case "timestamp":
            return Arrival(f"TIMESTAMP_LTZ({column.fsp})", read)
        case "time":
            return Arrival("BIGINT", lambda text: read(_clock(int(text))))
        case _:
            return Arrival("STRING", read)


def _integer(column: Column) -> str:
    if column.kind == "bit" or (column.unsigned and column.tp == types.BIGINT):
        return "DECIMAL(20, 0)"
    is_long = column.tp == types.BIGINT or (column.unsigned and column.tp == types.INT)
    return "BIGINT" if is_long else "INT"


def _text(value: str) -> bytes:
    return value.encode()


def _members(elements: tuple[str, ...], bits: int) -> str:
    return ",".join(name for n, name in enumerate(elements) if bits >> n & 1)


def _little_endian(text: str) -> int:
    return int.from_bytes(text.encode("latin-1"), "little")


def _unscaled(text: str, scale: int) -> str:
    return f"{int.from_bytes(text.encode('latin-1'), 'big', signed=True)}e-{scale}"


def _micros(number: int, seconds: float) -> datetime.timedelta:
    return datetime.timedelta(microseconds=number * round(seconds * 1_000_000))


def _moment(number: int, unit_s: float) -> str:
    moment = _EPOCH + _micros(number, unit_s)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")


def _clock(micros: int) -> str:
    seconds, rest = divmod(abs(micros), 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"
    return "-" * (micros < 0) + text


def quoted(name: str) -> str:
    """Return an identifier in Flink SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a string literal in Flink SQL."""
    return "'" + text.replace("'", "''") + "'"
