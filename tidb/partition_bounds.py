r"""Parse values in TiDB's PartitionInfo (`less_than`, `in_values`), which are SQL text.

The text is spelled in three ways:

    "2022-01-01"   TiDB about 3.0 to 6.1, as Go quotes strings: \n, \x1b, \u00a0, bytes that
                   aren't UTF-8 as \xff
    'it''s \\'     later ones: quotes and backslashes doubled
    x'61', 0x61, b'1', each perhaps behind _binary or another character set's name
"""

from __future__ import annotations

import re

_LITERAL = re.compile(
    r"""(?:_\w+\s*)?(?:"(?P<go>(?:[^"\\]|\\.)*)"|'(?P<sql>(?:[^']|'')*)'|[xX]'(?P<hex>[0-9a-fA-F]*)'"""
    r"""|0x(?P<digits>[0-9a-fA-F]+)|b'(?P<bits>[01]*)')""",
    re.DOTALL,
)
_GO_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_GO_CONTROLS = {"a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v"}


def string_value(text: str) -> bytes | None:
    """Return what a string literal of a PartitionInfo stands for.

    None if `text` is none: a number, NULL, MAXVALUE.
    """
    match = _LITERAL.fullmatch(text.strip())
    if match is None:
        return None
    if match["go"] is not None:
        return _go_value(match["go"])
    if match["sql"] is not None:
        return (
            match["sql"].replace("\\\\", "\\").replace("''", "'").encode("utf-8", "surrogateescape")
        )
    if match["bits"] is not None:
        return int(match["bits"] or "0", 2).to_bytes((len(match["bits"]) + 7) // 8, "big")
    digits: str = match["hex"] if match["hex"] is not None else match["digits"]
    return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))


def _go_value(text: str) -> bytes:
    found, at = [], 0
    for match in _GO_ESCAPE.finditer(text):
        found.append(text[at : match.start()].encode("utf-8", "surrogateescape"))
        one_byte, short, long, sign = match.groups()
        if one_byte:
            found.append(bytes([int(one_byte, 16)]))
        elif sign:
            found.append(_GO_CONTROLS.get(sign, sign.encode()))
        else:
            found.append(chr(int(short or long, 16)).encode())
        at = match.end()
    return b"".join((*found, text[at:].encode("utf-8", "surrogateescape")))
