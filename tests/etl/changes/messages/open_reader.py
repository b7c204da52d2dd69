"""Read TiCDC's Open protocol as its consumers do: types by their numbers, Go's escapes reversed."""

from __future__ import annotations

import base64
import json
import re
import struct
from typing import Any

from sluice.etl.changes.messages import Message
from tests.etl.changes.messages.recorded_messages import Change, meaning

_DROP_TABLE, _TRUNCATE_TABLE = 4, 11
_KINDS = {
    **dict.fromkeys((1, 2, 3, 8, 9, 13), "int"),
    4: "float",
    5: "double",
    7: "timestamp",
    10: "date",
    11: "time",
    12: "datetime",
    14: "date",
    16: "bit",
    245: "json",
    246: "decimal",
    247: "index",
    248: "index",
}
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)", re.DOTALL)
_NAMED = dict(zip('abtnvfr"\\', '\a\b\t\n\v\f\r"\\', strict=True))
_BINARY = 1


class OpenReader:
    """Read messages in order."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, str]] = {}
        self.columns: dict[str, str] = {}
        self.watermark = 0

    def read(self, message: Message) -> Change | None:
        data, value = message.key or b"", message.value or b""
        (version,) = struct.unpack_from(">Q", data)
        assert version == 1
        key = json.loads(_one(data[8:]))
        assert key["ts"] == message.commit_ts
        if key["t"] == 3:
            self.watermark = key["ts"]
            assert value == bytes(8)
            return None
        table, document = f"{key['scm']}.{key['tbl']}", json.loads(_one(value))
        if key["t"] == 2:
            ops = {_DROP_TABLE: "drop", _TRUNCATE_TABLE: "truncate"}
            op = ops.get(document["t"])
            return Change(op, table) if op else None
        op = "delete" if "d" in document else "update" if "p" in document else "insert"
        columns = document["d" if op == "delete" else "u"]
        self.columns = {name: _kind(column) for name, column in columns.items()}
        self.kinds[table] = self.columns
        row = {name: _value(column) for name, column in columns.items()}
        if op == "delete":
            return Change(op, table, row, None)
        old = {name: _value(c) for name, c in document["p"].items()} if op == "update" else None
        return Change(op, table, old, row)

    def kept(self, value: Any, kind: str) -> Any:
        return value


def _one(data: bytes) -> bytes:
    """Return the only event of a batch."""
    (size,) = struct.unpack_from(">Q", data)
    assert len(data) == 8 + size
    return data[8:]


def _kind(column: dict[str, Any]) -> str:
    if column["t"] in _KINDS:
        return _KINDS[column["t"]]
    return "binary" if column["f"] & _BINARY else "text"


def _value(column: dict[str, Any]) -> Any:
    kind, value = _kind(column), column["v"]
    if value is None:
        return None
    if 249 <= column["t"] <= 252:
        return base64.b64decode(value)
    return meaning(_unquoted(value) if kind == "binary" else value, kind)


def _unquoted(text: str) -> bytes:
    parts, at = [], 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[at : match.start()].encode())
        code, at = match[1], match.end()
        if code[0] == "x":
            parts.append(bytes.fromhex(code[1:]))
        elif code[0] in "uU" and len(code) > 1:
            parts.append(chr(int(code[1:], 16)).encode())
        else:
            parts.append(_NAMED[code].encode())
    return b"".join([*parts, text[at:].encode()])
