"""Read Canal-JSON as its consumers do: types from `mysqlType`, every value from a string."""

from __future__ import annotations

import json
import re
from typing import Any

from sluice.etl.changes.messages import Message
from tests.etl.changes.messages.recorded_messages import Change, Row, meaning

_TYPE = re.compile(r"(\w+)(?:\((.*)\))?( unsigned)?( zerofill)?", re.DOTALL)
_ELEMENT = re.compile(r"'((?:[^']|'')*)'")
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "int"),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "binary"
    ),
}
_DDL = {"ERASE": "drop", "TRUNCATE": "truncate"}


class CanalReader:
    """Read messages in order."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, str]] = {}
        """Kinds of each table's columns."""
        self.columns: dict[str, str] = {}
        self.watermark = 0

    def read(self, message: Message) -> Change | None:
        document = json.loads(message.value or b"")
        table = f"{document['database']}.{document['table']}"
        if document["type"] == "TIDB_WATERMARK":
            self.watermark = document["_tidb"]["watermarkTs"]
            return None
        if document["isDdl"]:
            op = _DDL.get(document["type"])
            return Change(op, table) if op else None
        types = {name: _TYPE.fullmatch(text) for name, text in document["mysqlType"].items()}
        self.kinds[table] = self.columns = {
            n: _KINDS.get(t[1], t[1]) for n, t in types.items() if t
        }
        (row,) = document["data"]
        data = {name: _value(types[name], value) for name, value in row.items()}
        old: Row | None = None
        if document["old"]:
            (changed,) = document["old"]
            old = data | {name: _value(types[name], value) for name, value in changed.items()}
        match document["type"]:
            case "INSERT":
                return Change("insert", table, None, data)
            case "UPDATE":
                return Change("update", table, old, data)
            case "DELETE":
                return Change("delete", table, data, None)
        raise AssertionError(document["type"])

    def kept(self, value: Any, kind: str) -> Any:
        return value


def _value(found: Any, text: str | None) -> Any:
    if text is None:
        return None
    kind = _KINDS.get(found[1], found[1])
    if kind in ("enum", "set"):
        elements = [e.replace("''", "'") for e in _ELEMENT.findall(found[2])]
        number = int(text)
        if kind == "enum":
            text = elements[number - 1] if number else ""
        else:
            text = ",".join(e for bit, e in enumerate(elements) if number >> bit & 1)
    return meaning(text.encode("latin-1") if kind == "binary" else text, kind)
