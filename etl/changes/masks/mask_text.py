"""Mask texts: functions of the bytes of one value, which is not NULL. An empty one stays empty."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable

from sluice.etl.changes.masks.mask_key import mask_key
from sluice.tidb.schema import Column

MIN_HASH_DIGITS = 16
"""64 bits: among a hundred million values two are alike once in 3,700 cases."""
_HASH_DIGITS = 64
_LOCAL_DIGITS = 16
"""Hexadecimal digits in place of an address's local part."""
_ROUNDS = 10
"""As many as FF1 (NIST SP 800-38G) has."""
_MAX_BLOCK_DIGITS = 64
_DIGITS = re.compile(rb"[0-9]")

TextMask = Callable[[bytes], bytes]


def hash_width(column: Column) -> int:
    """Return how many hexadecimal digits of a hash the column holds."""
    return _HASH_DIGITS if column.flen < 0 else min(_HASH_DIGITS, column.flen)


def text_mask(kind: str, argument: str, key_place: str, column: Column) -> TextMask:
    """Return the function that masks a value of a text column: partial, hash, digits or email.

    Raises MaskKeyError.
    """
    if kind == "partial":
        return _partial(int(argument))
    key = mask_key(key_place)
    if kind == "digits":
        return _digits(key)
    if kind == "email":
        return _email(key, hash_width(column), column.flen)
    return _hash(key, hash_width(column))


def _partial(kept: int) -> TextMask:
    def change(raw: bytes) -> bytes:
        text = raw.decode("utf-8", "surrogateescape")
        hidden = len(text) - kept
        if hidden <= 0:  # all of a short value would show
            return b"*" * len(text)
        return b"*" * hidden + text[hidden:].encode("utf-8", "surrogateescape")

    return change


def _hash(key: bytes, width: int) -> TextMask:
    def change(raw: bytes) -> bytes:
        return hmac.digest(key, raw, "sha256").hex()[:width].encode() if raw else raw

    return change


def _email(key: bytes, width: int, flen: int) -> TextMask:
    whole = _hash(key, width)
    local = _hash(key, _LOCAL_DIGITS)

    def change(raw: bytes) -> bytes:
        _, at, domain = raw.rpartition(b"@")
        fits = flen < 0 or _LOCAL_DIGITS + 1 + len(domain) <= flen
        return local(raw) + at + domain if at and fits else whole(raw)

    return change


def _digits(key: bytes) -> TextMask:
    def change(raw: bytes) -> bytes:
        found = b"".join(_DIGITS.findall(raw)).decode()
        if not found:
            return raw
        blocks = [
            _permuted(key, number, found[at : at + _MAX_BLOCK_DIGITS])
            for number, at in enumerate(range(0, len(found), _MAX_BLOCK_DIGITS))
        ]
        others = iter("".join(blocks).encode())
        return _DIGITS.sub(lambda _: bytes((next(others),)), raw)

    return change


def _permuted(key: bytes, block: int, digits: str) -> str:
    """Return other digits, as many: a Feistel network as FF1's, with HMAC-SHA256 in its rounds."""
    size = len(digits)
    left, right = digits[: size // 2], digits[size // 2 :]
    for number in range(_ROUNDS):
        seed = hmac.digest(key, f"digits/{block}/{size}/{number}/{right}".encode(), "sha256")
        modulus = 10 ** len(left)
        mixed = (int(left or "0") + int.from_bytes(seed, "big")) % modulus
        left, right = right, f"{mixed:0{len(left)}d}" if left else ""
    return left + right
