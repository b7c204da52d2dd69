"""Decode HPACK (RFC 7541), remembering whole header blocks, and encode what a gRPC peer needs.

A gRPC client sends nearly the same header block with every call. As long as the dynamic table
doesn't change, equal bytes mean equal headers, so the decoder keeps the answers of the current
table state. Go's client indexes every new value, also each grpc-timeout, so the dynamic table is
kept exactly, sizes included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sluice.errors import Signal
from sluice.pump_service import kernel

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

_STATIC_NAMES = (
    ":authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https"
    " :status=200 :status=204 :status=206 :status=304 :status=400 :status=404 :status=500"
    " accept-charset accept-encoding=gzip,_deflate accept-language accept-ranges accept"
    " access-control-allow-origin age allow authorization cache-control content-disposition"
    " content-encoding content-language content-length content-location content-range content-type"
    " cookie date etag expect expires from host if-match if-modified-since if-none-match if-range"
    " if-unmodified-since last-modified link location max-forwards proxy-authenticate"
    " proxy-authorization range referer refresh retry-after server set-cookie"
    " strict-transport-security transfer-encoding user-agent vary via www-authenticate"
)


def _static_table() -> tuple[Header, ...]:
    rows: list[Header] = [(b"", b"")]  # HPACK counts from 1
    for item in _STATIC_NAMES.split():
        name, _, value = item.partition("=")
        rows.append((name.encode(), value.replace("_", " ").encode()))
    return tuple(rows)


_STATIC = _static_table()
_STATIC_END = len(_STATIC)  # 62, the index of the newest dynamic entry

# Bit length of the code of each byte value and of EOS. The code is canonical: codes of one length
# ascend with the byte value, so the lengths define it (RFC 7541, appendix B).
_CODE_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)


class HpackError(Signal, ValueError):
    """The header block can't be decoded; the connection's compression state is lost."""


def _huffman_codes() -> list[tuple[int, int]]:
    """(code, bits) for each symbol 0..256, 256 being EOS."""
    code = 0
    codes = [(0, 0)] * 257
    last = 0
    for bits, symbol in sorted((bits, symbol) for symbol, bits in enumerate(_CODE_LENGTHS)):
        code <<= bits - last
        codes[symbol] = (code, bits)
        code += 1
        last = bits
    return codes


class _Huffman:
    """A decoder that eats whole bytes.

    Its transitions (state, byte) are worked out when first met.
    """

    def __init__(self) -> None:
        # Tree node: [child of 0, child of 1]; a child >= 0 is a node, < 0 is symbol -1 - child.
        self._nodes: list[list[int | None]] = [[None, None]]
        self._depth = [0]
        self._ones = [True]  # only ones lead here: valid padding when at most 7 deep
        for symbol, (code, bits) in enumerate(_huffman_codes()):
            node = 0
            for shift in range(bits - 1, 0, -1):
                bit = code >> shift & 1
                child = self._nodes[node][bit]
                if child is None:
                    child = len(self._nodes)
                    self._nodes.append([None, None])
                    self._depth.append(self._depth[node] + 1)
                    self._ones.append(self._ones[node] and bit == 1)
                    self._nodes[node][bit] = child
                node = child
            self._nodes[node][code & 1] = -1 - symbol
        self._steps: dict[int, tuple[int, bytes]] = {}

    def _step(self, state: int, byte: int) -> tuple[int, bytes]:
        out = bytearray()
        for shift in range(7, -1, -1):
            child = self._nodes[state][byte >> shift & 1]
            assert child is not None  # the code is complete
            if child >= 0:
                state = child
            elif child == -257:
                raise HpackError("the EOS symbol inside a Huffman string")
            else:
                out.append(-1 - child)
                state = 0
        return state, bytes(out)

    def decode(self, raw: bytes) -> bytes:
        """Return the string that `raw` codes; HpackError if it is badly padded or holds EOS."""
        state = 0
        steps = self._steps
        parts = []
        for byte in raw:
            key = state << 8 | byte
            step = steps.get(key)
            if step is None:
                step = steps[key] = self._step(state, byte)
            state, text = step
            parts.append(text)
        if not self._ones[state] or self._depth[state] > 7:
            raise HpackError("badly padded Huffman string")
        return b"".join(parts)


_HUFFMAN = _Huffman()


class HpackDecoder:
    """Decode the header blocks of one connection, in order.

    `max_table_size` is what our SETTINGS_HEADER_TABLE_SIZE allows the peer (4096 by default),
    `max_list_size` what our SETTINGS_MAX_HEADER_LIST_SIZE does: a byte of a block may stand for a
    field of 4 KB.
    """

    __slots__ = ("_allowed", "_entries", "_limit", "_max_list", "_memo", "_memo_bytes", "_size")

    # of blocks that are remembered, and what is counted for each besides
    _MEMO_BYTES, _MEMO_EACH = 16 << 10, 64

    def __init__(self, max_table_size: int = 4096, max_list_size: int = 1 << 20) -> None:
        self._allowed = max_table_size
        self._max_list = max_list_size
        self._limit = max_table_size
        self._entries: deque[Header] = deque()
        self._size = 0
        self._memo: dict[bytes, Headers] = {}
        self._memo_bytes = 0

    def decode(self, block: bytes) -> Headers:
        """Return headers of one complete block.

        Raises HpackError; the connection can't go on after that.
        """
        known = self._memo.get(block)
        if known is not None:
            return known
        try:
            headers, changed = self._decode(block)
        except IndexError:
            raise HpackError("the header block ends in the middle of a field") from None
        if changed:
            self._memo.clear()
            self._memo_bytes = 0
        else:
            size = len(block) + 8 * len(headers) + self._MEMO_EACH  # a byte may stand for a field
            if self._memo_bytes + size <= self._MEMO_BYTES:
                self._memo[block] = headers
                self._memo_bytes += size
        return headers

    def recall(self, block: bytes) -> Headers | None:
        """Return headers of a block that came before, if it still means the same."""
        return self._memo.get(block)

    def _decode(self, block: bytes) -> tuple[Headers, bool]:
        usual = kernel.fields(block, _STATIC, self._entries)
        if usual is None:
            return self._decode_any(block)
        headers, inserted = usual
        self._check_size(block, headers)
        for header in inserted:
            self._insert(header)
        return headers, bool(inserted)

    def _check_size(self, block: bytes, headers: Sequence[Header]) -> None:
        # A field takes at least a byte of the block and at most what the table holds: only long
        # blocks can be too much.
        if len(block) * self._allowed > self._max_list:
            size = sum(len(name) + len(value) + 32 for name, value in headers)
            if size > self._max_list:
                raise HpackError(f"a list of {size} bytes of headers, {self._max_list} are allowed")

    def _decode_any(self, block: bytes) -> tuple[Headers, bool]:
        out: list[Header] = []
        changed = False
        pos = 0
        end = len(block)
        while pos < end:
            byte = block[pos]
            if byte & 0x80:  # indexed field
                index = byte & 0x7F
                pos += 1
                if index == 0x7F:
                    index, pos = _integer(block, pos, 0x7F)
                out.append(self._entry(index))
                continue
            if byte & 0xE0 == 0x20:  # table size update
                if out:
                    raise HpackError("a table size update after the first field")
                size = byte & 0x1F
                pos += 1
                if size == 0x1F:
                    size, pos = _integer(block, pos, 0x1F)
                if size > self._allowed:
                    raise HpackError(f"table size {size} is above the {self._allowed} allowed")
                self._limit = size
                self._shrink(0)
                changed = True
                continue
            mask = 0x3F if byte & 0x40 else 0x0F
            index = byte & mask
            pos += 1
            if index == mask:
                index, pos = _integer(block, pos, mask)
            if index:
                name = self._entry(index)[0]
            else:
                name, pos = _string(block, pos)
            value, pos = _string(block, pos)
            header = (name, value)
            out.append(header)
            if byte & 0x40:
                self._insert(header)
                changed = True
        self._check_size(block, out)
        return tuple(out), changed

    def _entry(self, index: int) -> Header:
        if 0 < index < _STATIC_END:
            return _STATIC[index]
        if 0 < index < _STATIC_END + len(self._entries):
            return self._entries[index - _STATIC_END]
        raise HpackError(f"index {index} is not in the header table")

    def _insert(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + 32
        self._shrink(size)
        if size <= self._limit:  # a larger one only empties the table
            self._entries.appendleft(header)
            self._size += size

    def _shrink(self, room: int) -> None:
        entries = self._entries
        while entries and self._size + room > self._limit:
            name, value = entries.pop()
            self._size -= len(name) + len(value) + 32


def _integer(block: bytes, pos: int, prefix: int) -> tuple[int, int]:
    value = prefix
    shift = 0
    while True:
        byte = block[pos]
        pos += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 28:
            raise HpackError("an integer of more than 32 bits")


def _string(block: bytes, pos: int) -> tuple[bytes, int]:
    byte = block[pos]
    length = byte & 0x7F
    pos += 1
    if length == 0x7F:
        length, pos = _integer(block, pos, 0x7F)
    end = pos + length
    if end > len(block):
        raise HpackError("a string runs past the end of the header block")
    raw = block[pos:end]
    return (_HUFFMAN.decode(raw) if byte & 0x80 else raw), end


def _encode_integer(value: int, prefix: int, first: int) -> bytes:
    if value < prefix:
        return bytes([first | value])
    out = bytearray([first | prefix])
    value -= prefix
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_headers(headers: Headers) -> bytes:
    """Return a header block of literals.

    It leaves the peer's dynamic table alone, so it can be sent any time.
    """
    out = []
    for name, value in headers:
        if (name, value) in _STATIC:
            out.append(_encode_integer(_STATIC.index((name, value)), 0x7F, 0x80))
            continue
        out += [
            b"\x00",
            _encode_integer(len(name), 0x7F, 0),
            name,
            _encode_integer(len(value), 0x7F, 0),
            value,
        ]
    return b"".join(out)
