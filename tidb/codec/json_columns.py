"""Convert the binary JSON of many rows into text at once, level by level.

All documents are walked together, with one numpy operation a level. Layout of the binary form:
`sluice.tidb.codec.binary_json`, which is the reference for the text. Every value of a document is a
node with two pieces of text: what comes before it (comma, key, opening bracket) and the value
itself (or the closing bracket, behind all its members). A node's place among the pieces follows
from the sizes of the subtrees before it, and one gather of all pieces in that order is the text of
all documents.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.tidb.codec.binary_json import (
    ARRAY,
    DATE,
    DATETIME,
    DOUBLE,
    INT64,
    LITERAL,
    OBJECT,
    OPAQUE,
    STRING,
    TIME,
    TIMESTAMP,
    UINT64,
    decode_json,
    quote,
)
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.float import format_double
from sluice.tidb.codec.vectorized import Buffer, Ints, Mask, Words, varints

_MAX_DEPTH = 128
_U32 = np.uint64(0xFFFFFFFF)
_LITERALS = [b"null", b"true", b"false"]
_RARE = (OPAQUE, DATE, DATETIME, TIMESTAMP, TIME)
_WIDTH = np.zeros(256, np.int64)  # bytes of values of a fixed size
for _kind, _size in {
    LITERAL: 1,
    INT64: 8,
    UINT64: 8,
    DOUBLE: 8,
    DATE: 8,
    DATETIME: 8,
    TIMESTAMP: 8,
    TIME: 12,
}.items():
    _WIDTH[_kind] = _size
_KNOWN = np.zeros(256, np.bool_)
_KNOWN[
    [OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING, OPAQUE, DATE, DATETIME, TIMESTAMP, TIME]
] = True
# Bytes that may need an escape; 0xe2 begins U+2028 and U+2029.
_SPECIAL = np.zeros(256, np.bool_)
_SPECIAL[:0x20] = True
_SPECIAL[[0x22, 0x5C, 0xE2]] = True


@dataclass(slots=True)
class _Level:
    """The nodes of one depth, in the order of the documents.

    `parent`: index into the level above; `ordinal`: place among its siblings; `key`: start and
    length of its name, length -1 in arrays and at the top.
    """

    kind: Ints
    at: Ints
    limit: Ints
    document: Ints
    parent: Ints
    ordinal: Ints
    key_at: Ints
    key_size: Ints


def json_texts(buffer: Buffer, start: Ints, end: Ints, bad: Mask) -> tuple[pa.Buffer, Ints]:
    """Return (data, offsets int64[n+1]) of the texts of the documents between `start` and `end`.

    Documents that are malformed are set in `bad` and have any text.
    """
    levels = [_top(buffer, start, end, bad)]
    while (children := _members(buffer, levels[-1], bad)) is not None:
        if len(levels) > _MAX_DEPTH:
            bad[children.document] = True
            _make_null(levels[-1], np.ones(len(levels[-1].kind), np.bool_))
            break
        levels.append(children)
    sizes = _subtree_sizes(levels)
    ends = 2 * np.cumsum(sizes[0])
    places = [ends - 2 * sizes[0]]
    for level, size in zip(levels[1:], sizes[1:], strict=True):
        before = np.cumsum(size) - size
        first = np.flatnonzero(level.ordinal == 0)
        before -= np.repeat(before[first], np.diff(np.append(first, len(size))))
        places.append(places[-1][level.parent] + 1 + 2 * before)
    nodes = _Level(
        *(np.concatenate([getattr(level, name) for level in levels]) for name in _Level.__slots__)
    )
    place, last = np.concatenate(places), np.concatenate(places) + 2 * np.concatenate(sizes) - 1
    pool, opening, closing = _pieces(buffer, nodes, bad)
    order = np.empty(2 * len(place), np.int64)
    order[place], order[last] = opening, closing
    gathered = pool.take(pa.array(order))
    _, offsets, data = gathered.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(order) + 1, gathered.offset * 8)
    return data if data is not None else pa.py_buffer(b""), np.concatenate(
        (bounds[:1], bounds[ends])
    )


def _top(buffer: Buffer, start: Ints, end: Ints, bad: Mask) -> _Level:
    count = len(start)
    zero = np.zeros(count, np.int64)
    level = _Level(
        buffer.bytes[start].astype(np.int64),
        start + 1,
        end,
        np.arange(count),
        zero,
        np.arange(count),
        zero,
        np.full(count, -1),
    )
    return _checked(buffer, level, bad)


def _checked(buffer: Buffer, level: _Level, bad: Mask) -> _Level:
    """Set nodes that are none to null, and their documents to bad."""
    wrong = ~_KNOWN[level.kind] | (level.at + np.maximum(_WIDTH[level.kind], 1) > level.limit)
    containers = np.flatnonzero((level.kind <= ARRAY) & ~wrong)
    if len(containers):
        at = level.at[containers]
        short = at + 8 > level.limit[containers]
        head = buffer.words[np.where(short, 0, at)]
        count, size = (head & _U32).astype(np.int64), (head >> np.uint64(32)).astype(np.int64)
        entries = 8 + count * np.where(level.kind[containers] == OBJECT, 11, 5)
        wrong[containers] = short | (size < entries) | (at + size > level.limit[containers])
    if wrong.any():
        bad[level.document[wrong]] = True
        _make_null(level, wrong)
    return level


def _make_null(level: _Level, which: Mask) -> None:
    level.kind[which] = LITERAL
    level.at[which] = -1


def _members(buffer: Buffer, level: _Level, bad: Mask) -> _Level | None:
    """Return the next level; None if no node has members."""
    parents = np.flatnonzero(level.kind <= ARRAY)
    at = level.at[parents]
    head = buffer.words[at]
    count = (head & _U32).astype(np.int64)
    total = int(count.sum())
    if not total:
        return None
    limit = at + (head >> np.uint64(32)).astype(np.int64)
    owner = np.repeat(np.arange(len(parents)), count)
    ordinal = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    base, named = at[owner], level.kind[parents][owner] == OBJECT
    entry = base + 8 + np.where(named, 6 * count[owner], 0) + 5 * ordinal
    kind = buffer.bytes[entry].astype(np.int64)
    offset = (buffer.words[entry + 1] & _U32).astype(np.int64)
    key = buffer.words[base + 8 + 6 * ordinal]
    key_at = base + (key & _U32).astype(np.int64)
    key_size = np.where(named, (key >> np.uint64(32) & np.uint64(0xFFFF)).astype(np.int64), -1)
    bound = limit[owner]
    document = level.document[parents][owner]
    outside = named & (key_at + key_size > bound)
    if outside.any():
        bad[document[outside]] = True
        key_at, key_size = np.where(outside, base, key_at), np.where(outside, 0, key_size)
    inline = kind == LITERAL
    body, body_limit = np.where(inline, entry + 1, base + offset), bound
    return _checked(
        buffer,
        _Level(kind, body, body_limit, document, parents[owner], ordinal, key_at, key_size),
        bad,
    )


def _subtree_sizes(levels: list[_Level]) -> list[Ints]:
    """Return how many nodes each node's subtree has, itself included."""
    sizes = [np.ones(len(level.kind), np.int64) for level in levels]
    for n in range(len(levels) - 1, 0, -1):
        sizes[n - 1] += np.bincount(levels[n].parent, sizes[n], len(sizes[n - 1])).astype(np.int64)
    return sizes


def _pieces(buffer: Buffer, nodes: _Level, bad: Mask) -> tuple[pa.LargeBinaryArray, Ints, Ints]:
    """Return (pool of texts, index of each node's opening, index of each node's closing)."""
    named = nodes.key_size >= 0
    keys = _slices(buffer, nodes.key_at[named], nodes.key_size[named]).dictionary_encode()
    names = [
        quote(raw.decode("utf-8", "replace")).encode() + b": "
        for raw in keys.dictionary.to_pylist()
    ]
    bracket = np.where(nodes.kind == OBJECT, 1, np.where(nodes.kind == ARRAY, 2, 0))
    # labels: [name or none] x [first or not] x [no bracket, {, []
    labels = [
        comma + name + opening
        for name in (b"", *names)
        for comma in (b"", b", ")
        for opening in (b"", b"{", b"[")
    ]
    name = np.zeros(len(named), np.int64)
    name[named] = np.asarray(keys.indices) + 1
    later = (nodes.ordinal > 0) & (np.arange(len(named)) >= len(bad))
    opening = (name * 2 + later) * 3 + bracket
    pool: list[pa.LargeBinaryArray] = [
        pa.array([*labels, *_LITERALS, b"}", b"]"], pa.large_binary())
    ]
    literal = len(labels)
    closing = np.where(
        nodes.kind == OBJECT, literal + 3, np.where(nodes.kind == ARRAY, literal + 4, literal)
    )
    filled = len(pool[0])

    def values(which: Ints, texts: pa.LargeBinaryArray) -> None:
        nonlocal filled
        closing[which] = filled + np.arange(len(which))
        pool.append(texts)
        filled += len(texts)

    literals = np.flatnonzero((nodes.kind == LITERAL) & (nodes.at >= 0))
    meaning = buffer.bytes[nodes.at[literals]].astype(np.int64)
    bad[nodes.document[literals[meaning > 2]]] = True
    closing[literals] = literal + np.minimum(meaning, 2)
    for kind, number in ((INT64, np.int64), (UINT64, np.uint64)):
        which = np.flatnonzero(nodes.kind == kind)
        if len(which):
            values(
                which,
                pa.array(buffer.words[nodes.at[which]].view(number))
                .cast(pa.large_string())
                .cast(pa.large_binary()),
            )
    which = np.flatnonzero(nodes.kind == DOUBLE)
    if len(which):
        distinct, index = np.unique(buffer.words[nodes.at[which]], return_inverse=True)
        texts = pa.array(
            [format_double(value).encode() for value in distinct.view(np.float64).tolist()],
            pa.large_binary(),
        )
        values(which, texts.take(pa.array(index)))
    which = np.flatnonzero(nodes.kind == STRING)
    if len(which):
        values(which, _strings(buffer, nodes, which, bad))
    for i in np.flatnonzero(np.isin(nodes.kind, _RARE)).tolist():
        values(np.array([i]), pa.array([_single(buffer, nodes, i, bad)], pa.large_binary()))
    return pa.concat_arrays(pool), opening, closing


def _strings(buffer: Buffer, nodes: _Level, which: Ints, bad: Mask) -> pa.LargeBinaryArray:
    """Return strings as JSON literals."""
    at = nodes.at[which]
    length, head, malformed = varints(buffer.words, at)
    start, size = at + head, _clipped(length)
    wrong = start + size > nodes.limit[which]
    if malformed is not None:
        wrong |= malformed
    if wrong.any():
        bad[nodes.document[which[wrong]]] = True
        start, size = np.where(wrong, at, start), np.where(wrong, 0, size)
    raw = _slices(buffer, start, size)
    offsets = np.frombuffer(raw.buffers()[1], np.int64, len(raw) + 1)
    data = (
        np.frombuffer(raw.buffers()[2], np.uint8, int(offsets[-1]))
        if offsets[-1]
        else np.zeros(0, np.uint8)
    )
    doubtful = _SPECIAL[data]
    try:
        raw.cast(pa.large_string())
    except pa.ArrowInvalid:
        doubtful |= data > 0x7F
    mark = pa.scalar(b'"', pa.large_binary())
    quoted = pc.binary_join_element_wise(mark, raw, mark, pa.scalar(b"", pa.large_binary()))
    if not doubtful.any():
        return quoted
    seen = np.concatenate(([0], np.cumsum(doubtful)))
    special = seen[offsets[1:]] > seen[offsets[:-1]]
    texts = [
        quote(text.decode("utf-8", "replace")).encode()
        for text in raw.filter(pa.array(special)).to_pylist()
    ]
    return pc.replace_with_mask(quoted, pa.array(special), pa.array(texts, pa.large_binary()))


def _clipped(length: Words) -> Ints:
    return np.minimum(length, np.uint64(1 << 40)).astype(np.int64)


def _single(buffer: Buffer, nodes: _Level, i: int, bad: Mask) -> bytes:
    """Return the text of a value of a kind that is rare inside JSON."""
    raw = (
        bytes((int(nodes.kind[i]),))
        + buffer.bytes[int(nodes.at[i]) : int(nodes.limit[i])].tobytes()
    )
    try:
        return decode_json(raw)[0].encode()
    except CodecError:
        bad[int(nodes.document[i])] = True
        return b"null"


def _slices(buffer: Buffer, start: Ints, size: Ints) -> pa.LargeBinaryArray:
    """Copy parts of the buffer one behind another."""
    count = len(start)
    if not count:
        return pa.array([], pa.large_binary())
    offsets = np.empty(2 * count + 2, np.int64)
    offsets[0], offsets[1:-1:2], offsets[-1] = 0, start, len(buffer.bytes)
    np.add(start, size, out=offsets[2:-1:2])
    both = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * count + 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer.bytes)]
    )
    return both.take(pa.array(np.arange(1, 2 * count, 2)))
