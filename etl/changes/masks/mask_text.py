"""Mask texts: functions of the bytes of one value, which is not NULL. An empty one stays empty."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable

from sluice.etl.changes.masks.mask_key import mask_key
from sluice.tidb.schema import Column

MIN_HASH_DIGITS = 16
"""64 bits: among a hundred million values two are alike once in 3,700 cases."""
MIN_KEY_HASH_DIGITS = 32
"""128 bits: no two of a billion values are alike but in one case of 10^20."""
_HASH_DIGITS = 64
_LOCAL_DIGITS = 16
"""Hexadecimal digits in place of an address's local part."""
_ROUNDS = 10
"""As many as FF1 (NIST SP 800-38G) has."""
_MAX_BLOCK_DIGITS = 64
_DIGITS, _OTHERS = re.compile(rb"[0-9]"), re.compile(rb"[^0-9]+")
_POWERS = [10**width for width in range(_MAX_BLOCK_DIGITS)]
_HASH_BLOCK_BYTES = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))

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


class _KeyedHash:
    """HMAC-SHA256 (RFC 2104) with one key, which is hashed once."""

    def __init__(self, key: bytes) -> None:
        block = hashlib.sha256(key).digest() if len(key) > _HASH_BLOCK_BYTES else key
        block = block.ljust(_HASH_BLOCK_BYTES, b"\0")
        self.begun = hashlib.sha256(block.translate(_INNER))
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def of(self, message: bytes) -> str:
        """Return the hexadecimal digits of a message's hash."""
        begun = self.begun.copy()
        begun.update(message)
        return self.ended(begun).hexdigest()

    def ended(self, begun: hashlib._Hash) -> hashlib._Hash:
        """Return the hash of a message that was added to a copy of `begun`."""
        found = self._outer.copy()
        found.update(begun.digest())
        return found


def _hash(key: bytes, width: int) -> TextMask:
    digits_of = _KeyedHash(key).of

    def change(raw: bytes) -> bytes:
        return digits_of(raw)[:width].encode() if raw else raw

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
    keyed = _KeyedHash(key)

    @functools.lru_cache(maxsize=256)
    def begun(block: int, size: int) -> list[hashlib._Hash]:
        """Return the hash of each round as it begins, before the digits."""
        found = [keyed.begun.copy() for _ in range(_ROUNDS)]
        for number, each in enumerate(found):
            each.update(f"digits/{block}/{size}/{number}/".encode())
        return found

    def permuted(block: int, digits: bytes) -> bytes:
        """Return other digits, as many: a Feistel network as FF1's, HMAC-SHA256 in its rounds."""
        size = len(digits)
        left, right = digits[: size // 2], digits[size // 2 :]
        for start in begun(block, size):
            message = start.copy()
            message.update(right)
            if left:
                seed = int.from_bytes(keyed.ended(message).digest(), "big")
                width = len(left)
                left = b"%0*d" % (width, (int(left) + seed) % _POWERS[width])
            left, right = right, left
        return left + right

    def change(raw: bytes) -> bytes:
        found = _OTHERS.sub(b"", raw)
        if not found:
            return raw
        others = b"".join(
            permuted(number, found[at : at + _MAX_BLOCK_DIGITS])
            for number, at in enumerate(range(0, len(found), _MAX_BLOCK_DIGITS))
        )
        if len(found) == len(raw):
            return others
        left = iter(others)
        return _DIGITS.sub(lambda _: bytes((next(left),)), raw)

    return change
