"""Compute 128-bit digests of many byte strings at once, by array arithmetic.

There is no Python object a row. A string is taken as words of 8 bytes, the last one filled up with
zeros. Two lanes of 64 bits take in word after word, the second one with its bytes reversed: what
changes a word's upper bits changes few bits of the one and many of the other. Each step can be
undone, so strings that differ in one word differ in both lanes until another word comes; the length
goes in at the end, and both lanes are mixed with each other. Long strings, where a numpy call a
word would be more than one a string, have BLAKE2b in place of it.

It is no protection against strings that are made up on purpose; the constants are those of
SplitMix64 and MurmurHash3's finalizers and of xxHash (all odd, with about as many ones as zeros).
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa

__all__ = ["LONG_ROW_BYTES", "row_digests"]

LONG_ROW_BYTES = 1024
"""Strings of more bytes have BLAKE2b."""
_BLOCK_ROWS = 4096  # what lies in the caches meanwhile
_WORD = 8
_A = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_B = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SEEDS = (np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F))
_BYTE_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD)], np.uint64)

_Lanes = tuple[np.ndarray, np.ndarray]


def row_digests(rows: pa.LargeBinaryArray) -> _Lanes:
    """Return the upper and the lower 64 bits for each of `rows`, as uint64.

    There is at least one, and none is NULL.
    """
    offsets, data = _buffers(rows)
    upper, lower = np.empty(len(rows), np.uint64), np.empty(len(rows), np.uint64)
    for first in range(0, len(rows), _BLOCK_ROWS):
        part = slice(first, first + _BLOCK_ROWS)
        begins = offsets[:-1][part]
        upper[part], lower[part] = _digest_block(data, begins, offsets[1:][part] - begins)
    return upper, lower


def _buffers(rows: pa.LargeBinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each string begins and ends, and the words that begin at each byte."""
    _, offsets, data = rows.buffers()
    at = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + len(rows) + 1]
    taken = np.zeros(at[-1] - at[0] + _WORD, np.uint8)
    taken[: at[-1] - at[0]] = np.frombuffer(data, np.uint8)[at[0] : at[-1]] if at[-1] > at[0] else 0
    words = np.ndarray((len(taken) - _WORD + 1,), "<u8", taken, strides=(1,))
    return at - at[0], words


def _digest_block(words: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> _Lanes:
    # Longest first: strings with another word are at the front.
    order = np.argsort(-lengths, kind="stable")
    begins, lengths = begins[order], lengths[order]
    long = int(np.searchsorted(-lengths, -LONG_ROW_BYTES))
    lanes = _digest_short(words, begins[long:], lengths[long:])
    upper, lower = np.empty(len(order), np.uint64), np.empty(len(order), np.uint64)
    upper[order[long:]], lower[order[long:]] = lanes
    for row, begin, length in zip(order[:long], begins, lengths, strict=False):
        upper[row], lower[row] = _digest_long(words, int(begin), int(length))
    return upper, lower


def _digest_long(words: np.ndarray, begin: int, length: int) -> tuple[int, int]:
    data = words.base
    assert isinstance(data, np.ndarray)
    digest = blake2b(data[begin : begin + length].tobytes(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def _digest_short(words: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> _Lanes:
    """Digest short texts, whose `lengths` descend."""
    a, b = (np.full(len(begins), seed) for seed in _SEEDS)
    count = -(-int(lengths[0]) // _WORD) if len(lengths) else 0
    # For each word, the number of strings that reach into it.
    having = np.searchsorted(-lengths, -_WORD * np.arange(count), "left")
    whole = np.searchsorted(-lengths, -_WORD * np.arange(1, count + 1), "right")
    for number in range(count):
        here = int(having[number])
        word = words[begins[:here] + _WORD * number]
        cut = slice(int(whole[number]), here)
        word[cut] &= _BYTE_MASKS[lengths[cut] - _WORD * number]
        _mix(a[:here], word, _A)
        _mix(b[:here], word.byteswap(), _B)
    size = lengths.astype(np.uint64)
    _mix(a, size, _B)
    _mix(b, size, _A)
    b += a
    _mix(a, b, _A)
    _mix(b, a, _B)
    return a, b


def _mix(lane: np.ndarray, word: np.ndarray, by: tuple[np.uint64, np.uint64]) -> None:
    lane ^= word
    lane *= by[0]
    lane ^= lane >> np.uint64(32)
    lane *= by[1]
    lane ^= lane >> np.uint64(29)
