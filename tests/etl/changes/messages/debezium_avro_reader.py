"""Read Debezium's Avro as Kafka Connect does: by fastavro, and values by their `connect.name`."""

from __future__ import annotations

import datetime
from typing import Any

from sluice.etl.changes.messages import Message
from tests.etl.changes.messages.avro_reader import TombstoneReader, record_of
from tests.etl.changes.messages.debezium_reader import DebeziumReader
from tests.etl.changes.messages.recorded_messages import Change, Row, meaning

_OPS = {"c": "insert", "r": "insert", "u": "update", "d": "delete"}
_EPOCH = datetime.datetime(1970, 1, 1)
_KINDS = {
    "Enum": "enum",
    "EnumSet": "set",
    "Bits": "bit",
    "Json": "json",
    "Year": "int",
    "Date": "date",
    "Timestamp": "datetime",
    "MicroTimestamp": "datetime",
    "ZonedTimestamp": "timestamp",
    "MicroTime": "time",
    "Decimal": "decimal",
}
_PLAIN = {
    "boolean": "bit",
    "bytes": "binary",
    "string": "text",
    "float": "float",
    "double": "double",
    "int": "int",
    "long": "int",
}
_MICROS = {"Timestamp": 1000, "MicroTimestamp": 1}


class DebeziumAvroReader(TombstoneReader):
    """Read messages of Debezium's envelope."""

    def _change(self, message: Message, document: Any, record: dict[str, Any]) -> Change:
        assert document["connect.name"].endswith(".Envelope")
        source = record["source"]
        assert source["commit_ts"] == message.commit_ts
        assert source["ts_ms"] == message.commit_ts >> 18
        table = f"{source['db']}.{source['table']}"
        if record["op"] == "t":
            return Change("truncate", table)
        before = document["fields"][0]["type"][1]
        fields = {
            _column(field): (field["name"], _type(field["type"])) for field in before["fields"]
        }
        self.kinds[table] = self.columns = {
            name: _kind(schema) for name, (_, schema) in fields.items()
        }
        old, new = (_row(fields, record[part]) for part in ("before", "after"))
        if record["op"] == "d":
            self._deleted = message.key
        if message.key is not None:
            _, key = record_of(message.key, self._schema_of)
            assert key.keys() <= before_or_after(record).keys()
        return Change(_OPS[record["op"]], table, old, new)

    def kept(self, value: Any, kind: str) -> Any:
        """Dates that don't exist have no number."""
        return DebeziumReader().kept(value, kind)


def before_or_after(envelope: dict[str, Any]) -> Row:
    row: Row = envelope["before"] or envelope["after"]
    return row


def _type(found: Any) -> Any:
    if isinstance(found, list):
        null, found = found
        assert null == "null"
    return found if isinstance(found, dict) else {"type": found}


def _column(field: dict[str, Any]) -> str:
    name: str = _type(field["type"]).get("connect.parameters", {}).get("column", field["name"])
    return name


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("connect.name", "")).rpartition(".")[2]


def _kind(schema: dict[str, Any]) -> str:
    return _KINDS.get(_name(schema)) or _PLAIN[schema["type"]]


def _row(fields: dict[str, tuple[str, Any]], record: dict[str, Any] | None) -> Row | None:
    if record is None:
        return None
    return {name: _value(schema, record[field]) for name, (field, schema) in fields.items()}


def _value(schema: dict[str, Any], value: Any) -> Any:
    if value is None:
        return None
    name, kind = _name(schema), _kind(schema)
    if name == "Bits":
        return int.from_bytes(value, "little")
    if name == "Date":
        return str((_EPOCH + datetime.timedelta(days=value)).date())
    if name in _MICROS:
        moment = _EPOCH + datetime.timedelta(microseconds=value * _MICROS[name])
        return meaning(moment.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0"), kind)
    if name == "ZonedTimestamp":
        return meaning(value.removesuffix("Z").replace("T", " "), kind)
    if name == "MicroTime":
        seconds, micros = divmod(abs(value), 1_000_000)
        text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
        return meaning("-" * (value < 0) + text, kind)
    return value if kind == "binary" else meaning(value, kind)
