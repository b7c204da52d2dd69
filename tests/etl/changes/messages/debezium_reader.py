"""Read Debezium's JSON with schemas as Kafka Connect does: every value by its field's schema."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

from sluice.etl.changes.messages import Message
from tests.etl.changes.messages.recorded_messages import Change, Row, meaning

_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCHS = {
    "date": None,
    "datetime": None,
    "timestamp": None,
    "date not null": "1970-01-01",
    "datetime not null": "1970-01-01 00:00:00",
    "timestamp not null": "1970-01-01 00:00:00",
}
_MOMENTS = {
    "Date": "date",
    "Timestamp": "datetime",
    "MicroTimestamp": "datetime",
    "ZonedTimestamp": "timestamp",
}
_OPS = {"c": "insert", "r": "insert", "u": "update", "d": "delete"}


class DebeziumReader:
    """Read messages in order; a tombstone must follow its delete."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, str]] = {}
        """Kinds of each table's columns."""
        self.columns: dict[str, str] = {}
        self._deleted: tuple[bytes | None, str, Row | None] | None = None

    def read(self, message: Message) -> Change | None:
        if message.value is None:
            assert self._deleted is not None
            assert message.key == self._deleted[0]
            self._deleted = None
            return None
        assert self._deleted is None, "a delete without a tombstone"
        document = json.loads(message.value)
        payload, fields = document["payload"], _fields(document["schema"])
        _check(payload, document["schema"])
        source = payload["source"]
        assert source["commit_ts"] == message.commit_ts
        table = f"{source['db']}.{source['table']}"
        if "ddl" in payload or payload["op"] == "m":
            is_drop = payload.get("ddl", "").upper().startswith("DROP TABLE")
            return Change("drop", table) if is_drop else None
        if payload["op"] == "t":
            return Change("truncate", table)
        columns = _fields(fields["after"])
        self.kinds[table] = self.columns = {name: _kind(schema) for name, schema in columns.items()}
        old, new = (
            None
            if payload[part] is None
            else {name: _value(columns[name], value) for name, value in payload[part].items()}
            for part in ("before", "after")
        )
        if payload["op"] == "d" and message.key is not None:
            self._deleted = message.key, table, old
        if message.key is not None:
            key = json.loads(message.key)
            _check(key["payload"], key["schema"])
            row = payload["before"] if payload["op"] == "d" else payload["after"]
            assert key["payload"].items() <= row.items()
        return Change(_OPS[payload["op"]], table, old, new)

    def kept(self, value: Any, kind: str) -> Any:
        """Dates that don't exist have no number."""
        if value is None or kind not in _EPOCHS:
            return value
        try:
            datetime.datetime.fromisoformat(value)
        except ValueError:
            return _EPOCHS[kind]
        return value


def _fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["field"]: field for field in schema["fields"]}


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("int16", "int32", "int64"), int),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("string", "bytes"), str),
    "boolean": bool,
}


def _check(value: Any, schema: dict[str, Any]) -> None:
    """Check a value against its schema, as strict readers do."""
    if value is None:
        assert schema["optional"], schema
    elif schema["type"] == "struct":
        fields = _fields(schema)
        assert value.keys() == fields.keys()
        for name, field in fields.items():
            _check(value[name], field)
    elif schema["type"] == "array":
        for item in value:
            _check(item, schema["items"])
    else:
        assert isinstance(value, _JSON_TYPES[schema["type"]]), (value, schema)
        bits = {"int16": 16, "int32": 32, "int64": 64}.get(schema["type"])
        assert bits is None or -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def _kind(schema: dict[str, Any]) -> str:
    name = schema.get("name", "").rpartition(".")[2]
    if name in ("Enum", "EnumSet", "Bits", "Json", "Year"):
        return {"Enum": "enum", "EnumSet": "set", "Bits": "bit", "Json": "json", "Year": "int"}[
            name
        ]
    if name in _MOMENTS:
        return _MOMENTS[name] + ("" if schema["optional"] else " not null")
    if name == "MicroTime":
        return "time"
    kinds = {"boolean": "bit", "bytes": "binary", "string": "text", "float": "float"}
    return kinds.get(schema["type"], "double" if schema["type"] == "double" else "int")


def _value(schema: dict[str, Any], value: Any) -> Any:
    if value is None:
        return None
    name = schema.get("name", "").rpartition(".")[2]
    match name:
        case "Bits":
            return int.from_bytes(base64.b64decode(value), "little")
        case "Date":
            return str((_EPOCH + datetime.timedelta(days=value)).date())
        case "Timestamp":
            return _text(_EPOCH + datetime.timedelta(milliseconds=value))
        case "MicroTimestamp":
            return _text(_EPOCH + datetime.timedelta(microseconds=value))
        case "ZonedTimestamp":
            assert value.endswith("Z")
            return meaning(value[:-1].replace("T", " "), "timestamp")
        case "MicroTime":
            seconds, micros = divmod(abs(value), 1_000_000)
            text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
            return meaning("-" * (value < 0) + text, "time")
    kind = _kind(schema)
    if kind == "binary":
        return base64.b64decode(value)
    return meaning(value, kind)


def _text(moment: datetime.datetime) -> str:
    return str(meaning(moment.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0"), "datetime"))
