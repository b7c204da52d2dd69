"""Text by TiDB's rules: how values are spelled, and what is cut off."""

from __future__ import annotations

import numpy as np

from sluice.tidb import column_types
from sluice.tidb.conversion.context import NotConvertible, ValueOutOfRange
from sluice.tidb.schema import Column

_CODECS = {"utf8": "utf-8", "utf8mb3": "utf-8", "utf8mb4": "utf-8", "ascii": "ascii", "gbk": "gbk"}


def float_text(value: float, *, single: bool) -> bytes:
    """Return the fewest digits that identify the number, never with an exponent."""
    number = np.float32(value) if single else np.float64(value)
    return np.format_float_positional(number, unique=True, trim="-").encode()


def recode(text: bytes, source: Column, target: Column) -> bytes:
    """Convert text from one character set to another, both as TiDB stores them.

    All but binary is stored in UTF-8. Raises ValueOutOfRange, NotConvertible.
    """
    if target.kind == "binary":
        return (
            text.decode("utf-8", "surrogateescape").encode("gbk")
            if source.charset == "gbk"
            else text
        )
    codec = _CODECS.get(target.charset)
    if codec is None:
        if target.charset in ("latin1", ""):
            return text  # unchecked in TiDB
        raise NotConvertible(f"the character set {target.charset}")
    if source.kind == "binary" or source.tp in column_types.LONG:
        return _decoded(text, target, codec)
    return _checked(text, target, codec)


def _decoded(text: bytes, target: Column, codec: str) -> bytes:
    """Return bytes read as text; from the first that isn't, all are lost."""
    try:
        decoded = text.decode(codec)
    except UnicodeDecodeError as error:
        decoded = text[: error.start].decode(codec)
        raise ValueOutOfRange(decoded.encode(), f"not of character set {target.charset}") from error
    _refuse_wide(decoded, target)
    return decoded.encode()


def _checked(text: bytes, target: Column, codec: str) -> bytes:
    """Check that the target has the text's characters; TiDB stores question marks for others."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise NotConvertible("it isn't utf-8") from error
    _refuse_wide(decoded, target)
    if codec != "utf-8":
        found = "".join(char if _can_encode(codec, char) else "?" for char in decoded)
        if found != decoded:
            raise ValueOutOfRange(found.encode(), f"not of character set {target.charset}")
    return text


def _refuse_wide(text: str, target: Column) -> None:
    if target.charset in ("utf8", "utf8mb3") and any(ord(char) > 0xFFFF for char in text):
        raise NotConvertible(
            "characters beyond U+FFFF: what TiDB does with them is a setting of its own"
        )


def _can_encode(codec: str, char: str) -> bool:
    try:
        char.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


def truncate_to_type(text: bytes, target: Column) -> bytes:
    """Cut `text` to the length of a CHAR, VARCHAR, TEXT, BINARY, VARBINARY or BLOB.

    Raises ValueOutOfRange with what is left of it.
    """
    kept, binary = text, target.kind == "binary"
    if target.flen >= 0:
        if binary:
            kept = text[: target.flen]
        elif target.tp in column_types.LONG:
            kept = (
                text
                if len(text) <= target.flen
                else _without_partial_character(text[: target.flen])
            )
        elif len(text) > target.flen:
            decoded = text.decode("utf-8", "surrogateescape")
            if len(decoded) > target.flen:
                kept = decoded[: target.flen].encode("utf-8", "surrogateescape")
    lost = text[len(kept) :]
    stored = _finished(kept, target)
    if lost and (binary or target.tp in column_types.LONG or lost.strip(b" \t\n\r")):
        raise ValueOutOfRange(stored, f"longer than {target.flen}")
    return stored


def _without_partial_character(text: bytes) -> bytes:
    """Return `text` without the beginning of a character at its end."""
    while text and not any(_is_character(text[-size:]) for size in range(1, 5)):
        text = text[:-1]
    return text


def is_utf8(text: bytes) -> bool:
    """Return whether `text` is valid utf-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_character(text: bytes) -> bool:
    try:
        return len(text.decode()) == 1
    except UnicodeDecodeError:
        return False


def _finished(text: bytes, target: Column) -> bytes:
    if target.tp == column_types.CHAR:
        return (
            text.ljust(max(target.flen, 0), b"\0") if target.kind == "binary" else text.rstrip(b" ")
        )
    return text
