"""Values of partitions in each of the spellings that versions of TiDB have for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb.partition_bounds import string_value

_GO = {
    7: r"\a",
    8: r"\b",
    12: r"\f",
    10: r"\n",
    13: r"\r",
    9: r"\t",
    11: r"\v",
    92: r"\\",
    34: r"\"",
}


def quoted_by_go(text: str) -> str:
    """Spell a text as Go's strconv.Quote does."""
    parts = []
    for char in text:
        code = ord(char)
        if code in _GO:
            parts.append(_GO[code])
        elif code < 32 or code == 127:
            parts.append(f"\\x{code:02x}")
        elif char.isprintable():
            parts.append(char)
        else:
            parts.append(f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}")
    return '"' + "".join(parts) + '"'


def quoted_in_sql(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("a\\'\"n\nx0"))
def test_a_text_is_read_from_either_spelling(text: str) -> None:
    assert string_value(quoted_by_go(text)) == string_value(quoted_in_sql(text)) == text.encode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\xff\xfe"', b"\xff\xfe"),
        ("x'00FF'", b"\0\xff"),
        ("0x1FF", b"\x01\xff"),
        ("b'100000001'", b"\x01\x01"),
        ("_binary 0x61", b"a"),
        ("_UTF8MB4'a'", b"a"),
        (r"'a\b'", rb"a\b"),
        ("''", b""),
        ("NULL", None),
        ("MAXVALUE", None),
        ("-17", None),
        ("TO_DAYS('2020-01-01')", None),
        ("'a'+'b'", None),
    ],
)
def test_other_literals_are_read_and_what_is_no_string_is_none(
    text: str, value: bytes | None
) -> None:
    assert string_value(text) == value
