"""JSON documents decoded together read as each read by itself, whatever stands beside them."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.tidb.codec.binary_json import decode_json, encode_json
from sluice.tidb.codec.json_columns import json_texts
from sluice.tidb.codec.vectorized import Buffer
from tests.examples import examples
from tests.tidb.codec.test_binary_json import documents


def together(encoded: list[bytes]) -> list[str | None]:
    """The texts, None for documents that are refused."""
    buffer = Buffer(pa.array(encoded, pa.large_binary()))
    bad = np.zeros(len(encoded), np.bool_)
    data, offsets = json_texts(buffer, buffer.start, buffer.end, bad)
    raw = data.to_pybytes()
    return [
        None if bad[i] else raw[offsets[i] : offsets[i + 1]].decode() for i in range(len(encoded))
    ]


@settings(deadline=None)
@given(st.lists(documents, min_size=1, max_size=8))
@example(
    [
        {"ключ": ["\u2028 <&>", "\x07", -0.0, 1e300, 18446744073709551615], "": {}},
        [],
        1,
        "“quoted”",
        [[[[]]], {"a": {"a": None}}],
    ]
)
def test_documents_read_as_each_by_itself(many: list[Any]) -> None:
    encoded = [encode_json(json.dumps(document)) for document in many]
    assert together(encoded) == [decode_json(document)[0] for document in encoded]


def test_dates_times_and_opaque_values_inside_documents() -> None:
    times = [
        b"\x0e" + (2020 << 50 | 2 << 46 | 29 << 41).to_bytes(8, "little"),
        b"\x11" + (1500000000).to_bytes(8, "little") + bytes(4),
    ]
    values = [*times, b"\x0d\xfc\x02ab"]
    inside = []
    for value in values:
        head = (1).to_bytes(4, "little") + (13 + len(value) - 1).to_bytes(4, "little")
        inside.append(b"\x03" + head + value[:1] + (13).to_bytes(4, "little") + value[1:])
    assert together(values + inside) == [decode_json(v)[0] for v in values + inside]
    assert together(inside)[0] == '["2020-02-29"]'


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(documents, min_size=1, max_size=4), st.data())
def test_a_changed_document_is_refused_or_reads_as_by_itself_and_harms_no_other(
    many: list[Any], data: st.DataObject
) -> None:
    encoded = [encode_json(json.dumps(document)) for document in many]
    changed = bytearray(encoded[0])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    first, *others = together([bytes(changed), *encoded[1:]])
    assert others == [decode_json(document)[0] for document in encoded[1:]]
    if first is not None:
        assert first == decode_json(bytes(changed))[0]


def test_documents_deeper_than_tidb_allows_are_left_to_the_reference() -> None:
    deep = encode_json("[" * 150 + "]" * 150)
    assert together([deep, encode_json("1")]) == [None, "1"]
