"""Read Avro as a consumer does that has the registry: by fastavro and each schema's parameters."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro

from sluice.etl.changes.messages import Message
from tests.etl.changes.messages.recorded_messages import Change, Row, meaning
from tests.etl.changes.messages.schema_ids import registered_schema

_OPS = {"c": "insert", "r": "insert", "u": "update", "d": "delete"}
_KINDS = {"TEXT": "text", "BLOB": "binary", "TiDBVECTORFloat32": "vector"}


def record_of(
    raw: bytes, schema_of: Callable[[int], Any] = registered_schema
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema and the record of a key or value."""
    magic, schema_id = struct.unpack_from(">BI", raw)
    assert magic == 0
    document = schema_of(schema_id)
    source = io.BytesIO(raw[5:])
    found = fastavro.schemaless_reader(
        source, document, None, handle_unicode_errors="surrogateescape"
    )
    assert source.read() == b"", "bytes behind the record"
    assert isinstance(found, dict)
    return document, found


class TombstoneReader:
    """Read messages in order; a tombstone must follow its delete."""

    def __init__(self, schema_of: Callable[[int], Any] = registered_schema) -> None:
        self._schema_of = functools.cache(schema_of)
        self.kinds: dict[str, dict[str, str]] = {}
        """Kinds of each table's columns."""
        self.columns: dict[str, str] = {}
        self._deleted: bytes | None = None

    def read(self, message: Message) -> Change | None:
        if message.value is None:
            assert message.key is not None
            assert message.key == self._deleted
            self._deleted = None
            return None
        assert self._deleted is None, "a delete without a tombstone"
        return self._change(message, *record_of(message.value, self._schema_of))

    def _change(self, message: Message, document: Any, record: dict[str, Any]) -> Change:
        raise NotImplementedError


class AvroReader(TombstoneReader):
    """Read lossless messages."""

    def _change(self, message: Message, document: Any, record: dict[str, Any]) -> Change:
        assert record["_tidb_commit_ts"] == message.commit_ts
        assert record["_tidb_commit_physical_time"] == message.commit_ts >> 18
        table = dict(message.headers)["table"].decode()
        fields = {
            name: field
            for field in document["fields"]
            if not field["name"].startswith(("_tidb_", "_ticdc_"))
            for name in [_parameters(field).get("column", field["name"])]
        }
        self.kinds[table] = self.columns = {name: _kind(field) for name, field in fields.items()}
        op = record["_tidb_op"]
        present, before = _row(fields, record), _row(fields, record["_ticdc_before"])
        if op == "d":
            assert present == before
            self._deleted = message.key
        if message.key is not None:
            _, key = record_of(message.key, self._schema_of)
            assert key.items() <= record.items()
        return Change(_OPS[op], table, before, None if op == "d" else present)

    def kept(self, value: Any, kind: str) -> Any:
        return value


def _type(field: dict[str, Any]) -> dict[str, Any]:
    found = field["type"]
    if isinstance(found, list):
        (found,) = [each for each in found if each != "null"]
    assert isinstance(found, dict)
    return found


def _parameters(field: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = _type(field)["connect.parameters"]
    return found


def _kind(field: dict[str, Any]) -> str:
    name = _parameters(field)["tidb_type"].removesuffix(" UNSIGNED")
    return "int" if name in ("INT", "BIGINT") else _KINDS.get(name, name.lower())


def _row(fields: dict[str, dict[str, Any]], record: dict[str, Any] | None) -> Row | None:
    if record is None:
        return None
    return {name: _value(field, record[field["name"]]) for name, field in fields.items()}


def _value(field: dict[str, Any], value: Any) -> Any:
    kind = _kind(field)
    if value is None:
        return None
    if kind == "bit":
        return int.from_bytes(value, "big")
    if kind == "decimal":
        assert isinstance(value, Decimal)
    return meaning(value, kind)
