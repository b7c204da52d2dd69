"""HPACK: the RFC's examples, the dynamic table's limits, and what a broken peer may send."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.grpc_fastpath.hpack import (
    _CODE_LENGTHS,
    _HUFFMAN,
    HpackDecoder,
    HpackError,
    _huffman_codes,
    encode_headers,
)

# RFC 7541 C.4 and C.6: requests and responses with Huffman strings; the latter with a table of 256
# bytes.
_REQUESTS = [
    ("828684418cf1e3c2e5f23a6ba0ab90f4ff", {":authority": "www.example.com"}, 57),
    (
        "828684be5886a8eb10649cbf",
        {":authority": "www.example.com", "cache-control": "no-cache"},
        110,
    ),
    (
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        {":path": "/index.html", "custom-key": "custom-value"},
        164,
    ),
]
_RESPONSES = [
    (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
        {
            ":status": "302",
            "date": "Mon, 21 Oct 2013 20:13:21 GMT",
            "location": "https://www.example.com",
        },
        222,
    ),
    ("4883640effc1c0bf", {":status": "307", "cache-control": "private"}, 222),
    (
        (
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f"
            "3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
        ),
        {
            "content-encoding": "gzip",
            "set-cookie": "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        },
        215,
    ),
]


@pytest.mark.parametrize(("blocks", "limit"), [(_REQUESTS, 4096), (_RESPONSES, 256)])
def test_examples_of_the_rfc_decode_with_the_same_table_size(blocks, limit):
    decoder = HpackDecoder(limit)
    for block, expected, size in blocks:
        found = {
            name.decode(): value.decode() for name, value in decoder.decode(bytes.fromhex(block))
        }
        assert expected.items() <= found.items()
        assert decoder._size == size


def test_the_huffman_code_is_complete():
    assert sum(2 ** (30 - bits) for bits in _CODE_LENGTHS) == 2**30


@given(st.binary(max_size=200))
def test_huffman_strings_decode_to_what_was_coded(text):
    codes = _huffman_codes()
    value = bits = 0
    for byte in text:
        code, length = codes[byte]
        value, bits = value << length | code, bits + length
    pad = -bits % 8
    raw = (value << pad | (1 << pad) - 1).to_bytes((bits + pad) // 8, "big")
    assert _HUFFMAN.decode(raw) == text


@pytest.mark.parametrize(
    "raw", [b"\x18", b"\xff\xff\xff\xff", b"\xff\xff"], ids=["zero padding", "EOS", "long padding"]
)
def test_badly_padded_huffman_strings_are_refused(raw):
    with pytest.raises(HpackError):
        _HUFFMAN.decode(raw)


_names = st.binary(min_size=1, max_size=20)


@given(st.lists(st.tuples(_names, st.binary(max_size=300)), max_size=20))
def test_headers_survive_encoding_and_leave_the_table_alone(headers):
    decoder = HpackDecoder()
    assert decoder.decode(encode_headers(tuple(headers))) == tuple(headers)
    assert decoder._size == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000)), max_size=60))
def test_an_indexed_value_is_remembered_until_newer_ones_push_it_out(entries):
    """Every literal with indexing goes into the table, newest first, 4096 bytes in all.

    The memo must follow.
    """
    decoder = HpackDecoder()
    model: list[tuple[bytes, bytes]] = []
    for name_number, size in entries:
        name, value = b"name-%d" % name_number, b"v" * size
        length = (
            bytes([size])
            if size < 127
            else bytes([127, (size - 127) & 127 | 128, (size - 127) >> 7])
        )
        assert decoder.decode(b"\x40" + bytes([len(name)]) + name + length + value) == (
            (name, value),
        )
        model.insert(0, (name, value))
        while sum(len(n) + len(v) + 32 for n, v in model) > 4096:
            model.pop()
        for at, header in enumerate(model):
            if 62 + at < 127:
                assert decoder.decode(bytes([0x80 | 62 + at])) == (header,)
        with pytest.raises(HpackError):
            decoder.decode(
                bytes([0xFF]) + bytes([62 + len(model) - 127 & 127])
                if len(model) > 64
                else bytes([0x80 | 62 + len(model)])
            )


def test_equal_bytes_mean_something_else_once_the_table_has_changed():
    decoder = HpackDecoder()
    decoder.decode(b"\x40\x01a\x011")
    assert decoder.decode(b"\xbe") == ((b"a", b"1"),)
    decoder.decode(b"\x40\x01b\x012")
    assert decoder.decode(b"\xbe") == ((b"b", b"2"),)


def test_many_large_blocks_are_not_kept_and_what_came_first_is_still_known():
    decoder = HpackDecoder()
    usual = encode_headers(((b":path", b"/usual"),))
    first = decoder.decode(usual)
    tracemalloc.start()
    try:
        for n in range(300):
            assert decoder.decode(encode_headers(((b"large", b"%d" % n * 20_000),)))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20
    assert decoder.recall(usual) is first


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\x40\x05ab",
        b"\x3f\xe2\x1f",
        b"\x88\x20",
        b"\xff\xff\xff\xff\xff\xff\x0f",
        b"\x40",
    ],
    ids=[
        "index 0",
        "unknown index",
        "cut string",
        "table too large",
        "late size update",
        "huge integer",
        "cut field",
    ],
)
def test_broken_header_blocks_are_refused(block):
    with pytest.raises(HpackError):
        HpackDecoder().decode(block)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_arbitrary_bytes_decode_or_are_refused(blocks):
    decoder = HpackDecoder()
    try:
        for block in blocks:
            decoder.decode(block)
    except HpackError:
        pass
