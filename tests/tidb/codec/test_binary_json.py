"""Binary JSON: documents keep their meaning, text follows TiDB, corrupt bytes are refused and never
crash.
"""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.tidb.codec import CodecError
from sluice.tidb.codec.binary_json import decode_json, encode_json, json_size
from sluice.tidb.codec.float import decode_float, encode_float, format_double, format_float

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
documents = st.recursive(
    scalars,
    lambda d: st.lists(d, max_size=4) | st.dictionaries(texts, d, max_size=4),
    max_leaves=12,
)


def same(got: Any, want: Any) -> bool:
    """Equal, where whole doubles print as integers."""
    if isinstance(want, float):
        return float(got) == want
    if isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[k], want[k]) for k in want)
    return type(got) is type(want) and got == want


@given(documents)
@example({"ключ": ["\u2028 <&>", "\x07", -0.0, 1e300, 5e-324, 18446744073709551615]})
def test_documents_come_back(document: Any) -> None:
    encoded = encode_json(json.dumps(document))
    text, end = decode_json(b"!" + encoded + b"more", 1)
    assert same(json.loads(text), document)
    assert end == 1 + len(encoded) == 1 + json_size(encoded, 0)


def test_text_is_as_tidb_prints_it() -> None:
    text = decode_json(encode_json('{"b":[1,2.5,1e21,1e-7,true,null],"a":"x\\"\\n<é\\u0001"}'))[0]
    assert text == '{"a": "x\\"\\n<é\\u0001", "b": [1, 2.5, 1e+21, 1e-7, true, null]}'


@given(documents, st.data())
def test_a_cut_or_changed_document_is_refused_or_still_a_document(
    document: Any, data: st.DataObject
) -> None:
    encoded = bytearray(encode_json(json.dumps(document)))
    if data.draw(st.booleans()):
        encoded = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
        with pytest.raises(CodecError):
            decode_json(bytes(encoded))
        return
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        text, _ = decode_json(bytes(encoded))
    except CodecError:
        return
    assert isinstance(text, str)


def test_nesting_without_end_is_refused() -> None:
    # an array whose only element is the array itself
    loop = bytes.fromhex("03 01000000 0d000000 03 00000000")
    with pytest.raises(CodecError, match=r"nested|points"):
        decode_json(loop)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_print_shortest_and_read_back(value: float) -> None:
    text = format_double(value)
    assert float(text) == value
    assert ("e" in text) == (value != 0 and not 1e-6 <= abs(value) < 1e21)
    assert decode_float(encode_float(value)) == (value, 8)
    assert math.copysign(1, decode_float(encode_float(-0.0))[0]) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.1, "0.1"), (1234567.125, "1234567.1"), (3.4028234663852886e38, "3.40282e38"),
        (-1.1754943508222875e-38, "-1.17549e-38"), (1e15, "1e15"),
        (1.0000000116860974e-07, "0.0000001"), (-2.5, "-2.5"),
    ],
)  # fmt: skip
def test_floats_print_as_tidb_sends_them(value: float, text: str) -> None:
    assert format_float(value) == text
