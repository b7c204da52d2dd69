"""Read the Simple protocol as its consumers do: types by the schema that a row's version names."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import numpy as np

from sluice.etl.changes.messages import Message
from tests.etl.changes.messages.recorded_messages import Change, Row, meaning

_OPS = {"INSERT": "insert", "UPDATE": "update", "DELETE": "delete"}
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "int"),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "binary"
    ),
}


class SimpleReader:
    """Read messages in order."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, str]] = {}
        self.columns: dict[str, str] = {}
        self.watermark = 0
        self.schemas: dict[tuple[str, str, int], dict[str, Any]] = {}
        """By database, table and version."""

    def read(self, message: Message) -> Change | None:
        document = json.loads(message.value or b"")
        assert document["version"] == 1
        for part in ("preTableSchema", "tableSchema"):
            if part in document:
                self._learn(document[part])
        match document["type"]:
            case "WATERMARK":
                self.watermark = document["commitTs"]
                return None
            case "ERASE" | "TRUNCATE":
                schema = document.get("preTableSchema")
                op = "drop" if document["type"] == "ERASE" else "truncate"
                return Change(op, f"{schema['schema']}.{schema['table']}") if schema else None
            case "INSERT" | "UPDATE" | "DELETE":
                return self._change(document)
        return None

    def kept(self, value: Any, kind: str) -> Any:
        return value

    def _learn(self, schema: dict[str, Any]) -> None:
        key = schema["schema"], schema["table"], schema["version"]
        assert self.schemas.setdefault(key, schema) == schema

    def _change(self, document: dict[str, Any]) -> Change:
        database, table = document["database"], document["table"]
        schema = self.schemas[database, table, document["schemaVersion"]]
        assert schema["tableID"] == document["tableID"]
        types = {column["name"]: column["dataType"] for column in schema["columns"]}
        name = f"{database}.{table}"
        self.columns = {
            column: _KINDS.get(each["mysqlType"], each["mysqlType"])
            for column, each in types.items()
        }
        self.kinds[name] = self.columns
        self._check_checksum(document, schema)
        old, new = (self._row(document.get(part), types) for part in ("old", "data"))
        return Change(_OPS[document["type"]], name, old, new)

    def _check_checksum(self, document: dict[str, Any], schema: dict[str, Any]) -> None:
        """Compare the checksum with that of the message's own values, as TiCDC's consumer does."""
        if "checksum" in document:
            found = {
                part: self._checksum(document.get(image), schema)
                for part, image in (("current", "data"), ("previous", "old"))
            }
            assert document["checksum"] == {"version": 0, "corrupted": False, **found}

    def _checksum(self, values: dict[str, Any] | None, schema: dict[str, Any]) -> int:
        found = 0
        for column in schema["columns"] if values else ():
            value = values[column["name"]] if values else None
            if value is not None:
                found = zlib.crc32(_bytes(value, self.columns[column["name"]]), found)
        return found

    def _row(self, values: dict[str, Any] | None, types: dict[str, Any]) -> Row | None:
        if values is None:
            return None
        assert values.keys() == types.keys()
        return {name: self._value(name, types[name], value) for name, value in values.items()}

    def _value(self, name: str, data_type: dict[str, Any], value: Any) -> Any:
        kind = self.columns[name]
        if value is None:
            return None
        match kind:
            case "binary":
                value = base64.b64decode(value)
            case "timestamp":
                value = value["value"]
            case "enum":
                number = int(value)
                value = data_type["elements"][number - 1] if number else ""
            case "set":
                elements = enumerate(data_type["elements"])
                value = ",".join(each for bit, each in elements if int(value) >> bit & 1)
        return meaning(value, kind)


def _bytes(value: Any, kind: str) -> bytes:
    """Return what TiDB's checksum takes of a value."""
    match kind:
        case "int" | "year" | "bit" | "enum" | "set":
            return struct.pack("<Q", int(value) % 2**64)
        case "float":
            return struct.pack("<d", np.float32(value))
        case "double":
            return struct.pack("<d", float(value))
        case "vector":
            return struct.pack(
                f"<I{value.count(',') + 1}f", value.count(",") + 1, *json.loads(value)
            )
    if kind == "timestamp":
        assert value["location"] == "UTC"
        value = value["value"]
    raw = base64.b64decode(value) if kind == "binary" else value.encode("utf-8", "surrogateescape")
    return struct.pack("<I", len(raw)) + raw
