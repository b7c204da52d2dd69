"""Mask the upstream's rows for a comparison, by code that isn't the applier's.

Nothing but a mask's description and its key's bytes comes from `sluice.etl.changes.masks`: HMAC is
written out as RFC 2104 has it, and digits are permuted as numbers.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from sluice.etl.changes.masks import Mask, mask_key
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column

__all__ = ["masked_rows", "permuted_digits", "permuted_number"]

_BLOCK_BYTES = 64
"""Block size of SHA-256."""
_BLOCK_DIGITS = 64
_ROUNDS = 10


def masked_rows(
    batches: Iterable[pa.RecordBatch], columns: Iterable[Column]
) -> Iterator[pa.RecordBatch]:
    """Yield the upstream's rows as masks of the columns make them. Raises MaskKeyError."""
    shaped = list(columns)
    shifts = {c.name: c for c in shaped if c.mask and Mask.from_text(c.mask).kind == "shift-days"}
    masks = {c.name: _value_mask(c) for c in shaped if c.mask and c.name not in shifts}
    names = {folded(column.source_name): column.name for column in shaped}
    for batch in batches:
        arrays = [
            _each(array, masks[name])
            if name in masks
            else _moved(shifts[name], array, batch, names)
            if name in shifts
            else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _each(values: pa.Array, change: Callable[[object], object]) -> pa.Array:
    is_text = pa.types.is_large_string(values.type)
    plain = (values.view(pa.large_binary()) if is_text else values).to_pylist()
    found = [None if value is None else change(value) for value in plain]
    if not is_text:
        return pa.array(found, values.type)
    return pa.array(found, pa.large_binary()).view(values.type)


def _moved(
    column: Column, values: pa.Array, batch: pa.RecordBatch, names: dict[str, str]
) -> pa.Array:
    """Return dates, moved by the days of each row."""
    mask = Mask.from_text(column.mask)
    key, most = mask_key(mask.key), int(mask.argument)
    persons: list[object] = [None] * len(values)
    if mask.by:
        persons = batch[names[folded(mask.by)]].to_pylist()
    found: list[str | None] = []
    for value, person in zip(values.to_pylist(), persons, strict=True):
        tail = b"" if person is None else b"=" + str(person).encode("utf-8", "surrogateescape")
        digest = _hmac(key, f"shift-days/{most}/".encode() + tail)
        number = struct.unpack(">Q", digest[:8])[0] % (2 * most)
        days = number - most if number < most else number + 1 - most  # never none
        found.append(value and _moved_date(value, days, column.kind))
    return pa.array(found, values.type)


def _moved_date(value: str, days: int, kind: str) -> str:
    """Return a moment with its date moved day by day, as long as the type has another one."""
    date, time = value[:10], value[10:]
    low, high = ("0001-01-01", "9999-12-31")
    if kind == "timestamp":
        low = "1970-01-02" if time < " 00:00:01" else "1970-01-01"
        high = "2038-01-18" if time[:9] > " 03:14:07" else "2038-01-19"
    try:
        day = np.datetime64(date, "D")
    except ValueError:
        return "0000-00-00" + re.sub("[0-9]", "0", time)
    if date < "0001":
        return "0000-00-00" + re.sub("[0-9]", "0", time)
    moved = day + np.timedelta64(days, "D")
    return str(min(max(moved, np.datetime64(low)), np.datetime64(high))) + time


def _value_mask(column: Column) -> Callable[[object], object]:
    """Return the function of a value that isn't NULL: texts as bytes."""
    mask = Mask.from_text(column.mask)
    if mask.kind == "null":
        return lambda value: None
    if mask.kind == "constant":
        constant: object = int(mask.argument) if column.kind == "int" else mask.argument.encode()
        return lambda value: constant
    if mask.kind == "partial":
        return lambda value: _partial(value, int(mask.argument))  # type: ignore[arg-type]
    key = mask_key(mask.key)
    room = 1 << 30 if column.flen < 0 else column.flen
    if mask.kind == "hash":
        return lambda value: value and _hex(key, value)[:room]  # type: ignore[arg-type]
    if mask.kind == "digits" and column.kind == "int":
        bits = {1: 8, 2: 16, 3: 32, 8: 64, 9: 24}[column.tp]
        return lambda value: permuted_number(
            key,
            value,  # type: ignore[arg-type]
            bits,
            unsigned=column.unsigned,
        )
    if mask.kind == "digits":
        return lambda value: permuted_digits(key, value)  # type: ignore[arg-type]
    return lambda value: _email(key, value, room)  # type: ignore[arg-type]


def _partial(value: bytes, kept: int) -> bytes:
    # a character begins at each byte that is no continuation (10xxxxxx) of a whole one
    begins = []
    at = 0
    while at < len(value):
        begins.append(at)
        at += next(
            (n for n in (1, 2, 3, 4) if at + n <= len(value) and _is_utf8(value[at : at + n])), 1
        )
    if len(begins) <= kept:
        return b"*" * len(begins)
    return b"*" * (len(begins) - kept) + (value[begins[-kept] :] if kept else b"")


def _is_utf8(value: bytes) -> bool:
    try:
        return len(value.decode()) == 1
    except UnicodeDecodeError:
        return False


def _hmac(key: bytes, message: bytes) -> bytes:
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    block = key.ljust(_BLOCK_BYTES, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + message).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()


def _hex(key: bytes, value: bytes) -> bytes:
    return _hmac(key, value).hex().encode()


def _email(key: bytes, value: bytes, room: int) -> bytes:
    if not value:
        return value
    domain = value[value.rindex(b"@") :] if b"@" in value else b""
    if domain and 16 + len(domain) <= room:
        return _hex(key, value)[:16] + domain
    return _hex(key, value)[:room]


def permuted_digits(key: bytes, value: bytes) -> bytes:
    """Return a value with other digits in the places of its digits."""
    places = [at for at, byte in enumerate(value) if 0x30 <= byte <= 0x39]
    found = bytearray(value)
    for first in range(0, len(places), _BLOCK_DIGITS):
        block = places[first : first + _BLOCK_DIGITS]
        digits = _permuted(key, first // _BLOCK_DIGITS, bytes(value[at] for at in block))
        for at, byte in zip(block, digits, strict=True):
            found[at] = byte
    return bytes(found)


def permuted_number(key: bytes, value: int, bits: int, *, unsigned: bool) -> int:
    """Return the next number of a permutation's cycle that the type holds and that is as long."""
    sign, text = ("-", str(value)[1:]) if value < 0 else ("", str(value))
    held = range(2**bits) if unsigned else range(-(1 << bits - 1), 1 << bits - 1)
    while True:
        text = permuted_digits(key, text.encode()).decode()
        found = int(sign + text)
        if found in held and str(found) == sign + text:
            return found


def _permuted(key: bytes, block: int, digits: bytes) -> bytes:
    """Return a permutation of decimal numbers of one length, by ten rounds of a Feistel network.

    It changes the upper digits by the lower ones and the other way round, in place.
    """
    size = len(digits)
    high, low = size // 2, size - size // 2
    upper, lower = int(digits[:high] or b"0"), int(digits[high:])
    for number in range(_ROUNDS):
        seen, width = (upper, high) if number % 2 else (lower, low)
        text = str(seen).rjust(width, "0") if width else ""
        message = f"digits/{block}/{size}/{number}/{text}".encode()
        added = int.from_bytes(_hmac(key, message), "big")
        if number % 2:
            lower = (lower + added) % 10**low
        else:
            upper = (upper + added) % 10**high
    return str(upper * 10**low + lower).rjust(size, "0").encode()
