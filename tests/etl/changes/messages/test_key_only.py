"""A row's message with its key alone says so, and names where the whole one is, as TiCDC's do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sluice.etl.changes.messages import (
    FORMATS,
    Encoder,
    Message,
    MessageFormat,
    encoder_for,
    split_frames,
)
from sluice.relay import DELETE, INSERT, UPDATE
from tests.etl.changes.messages.orders import ORDERS, ROW, batch_of

LARGE = ROW | {"note": "x" * 1000}
LOCATION = "s3://bucket/2026-11-28/shop.orders/0-450000000000000000-1.json"


def sent(encoder: Encoder, kind: int = INSERT, **images: Any) -> Message:
    (frame,) = encoder.rows(batch_of(kind, **images)).to_pylist()
    return next(split_frames(frame))


@pytest.mark.parametrize("location", ["", LOCATION])
@pytest.mark.parametrize("content_compatible", [False, True])
def test_canal_json_has_the_primary_key_alone(location: str, content_compatible: bool) -> None:
    encoder = encoder_for(MessageFormat("canal-json", content_compatible=content_compatible))
    message = sent(encoder, UPDATE, old=LARGE, new=LARGE | {"id": 8})
    short = encoder.key_only(message, (), location)
    assert short is not None
    before, after = (json.loads(each.value or b"") for each in (message, short))
    mark = {"claimCheckLocation": LOCATION} if location else {"onlyHandleKey": True}
    assert after == before | {
        "sqlType": {"id": before["sqlType"]["id"]},
        "mysqlType": {"id": before["mysqlType"]["id"]},
        "data": [{"id": "8"}],
        "old": [{"id": "7"}],
        "_tidb": before["_tidb"] | mark,
    }
    assert short.headers == message.headers
    assert encoder.key_of(message, ()) == '{"id": "8"}'


@pytest.mark.parametrize("location", ["", LOCATION])
def test_the_open_protocol_has_the_handle_key_alone_and_a_mark_in_the_key(location: str) -> None:
    encoder = encoder_for(MessageFormat("open-protocol"))
    message = sent(encoder, UPDATE, old=LARGE, new=LARGE)
    short = encoder.key_only(message, (), location)
    assert short is not None
    key, value = (json.loads(part) for part in ((short.key or b"")[16:], (short.value or b"")[8:]))
    assert int.from_bytes((short.key or b"")[8:16], "big") == len((short.key or b"")[16:])
    mark = {"ccl": LOCATION} if location else {"ohk": True}
    assert key == json.loads((message.key or b"")[16:]) | mark
    column = {"t": 8, "h": True, "f": 139, "v": 7}
    assert value == {"u": {"id": column}, "p": {"id": column}}
    assert encoder.key_of(message, ()) == '{"id": 7}'


@pytest.mark.parametrize("location", ["", LOCATION])
@pytest.mark.parametrize("kind", [INSERT, DELETE])
def test_the_simple_protocol_has_the_key_of_the_schema_that_the_row_names(
    kind: int, location: str
) -> None:
    encoder = encoder_for(MessageFormat("simple"))
    part, image = ("data", "new") if kind == INSERT else ("old", "old")
    message = sent(encoder, kind, **{image: LARGE})
    short = encoder.key_only(message, encoder.schemas, location)
    assert short is not None
    mark = {"claimCheckLocation": LOCATION} if location else {"handleKeyOnly": True}
    before = json.loads(message.value or b"")
    assert json.loads(short.value or b"") == before | {part: {"id": "7"}} | mark
    assert encoder.key_of(message, encoder.schemas) == '{"id": "7"}'


@pytest.mark.parametrize("name", ["canal-json", "open-protocol", "simple"])
def test_a_row_without_a_key_has_no_such_form(name: str) -> None:
    encoder = encoder_for(MessageFormat(name))
    table = replace(ORDERS, pk_is_handle=False)
    (frame,) = encoder.rows(batch_of(INSERT, new=LARGE, table=table)).to_pylist()
    message = next(split_frames(frame))
    assert encoder.key_only(message, encoder.schemas, LOCATION) is None
    assert encoder.key_of(message, encoder.schemas) == ""


@pytest.mark.parametrize("name", [each for each in FORMATS if each != "binlog"])
def test_no_other_message_has_such_a_form(name: str) -> None:
    encoder = encoder_for(MessageFormat(name))
    for message in encoder.watermark(5, 6):
        assert encoder.key_only(message, (), "") is None


def test_a_format_without_a_mark_has_no_such_form() -> None:
    for options in (
        MessageFormat("canal-json", tidb_extension=False),
        MessageFormat("debezium-json"),
        MessageFormat("avro"),
    ):
        encoder = encoder_for(options)
        assert encoder.key_only(sent(encoder, new=LARGE), (), LOCATION) is None
