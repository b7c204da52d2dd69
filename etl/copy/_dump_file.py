"""The bytes of one file of a dump, in pieces, decompressed.

And where a large plain file may be cut.

``.gz`` is gzip, ``.zst`` Zstandard, ``.snappy`` (also ``.snz``) the framing format of Snappy:
chunks of a type byte, a length of three bytes (little-endian), and for data a masked CRC-32C of
four bytes before the rest, https://github.com/google/snappy/blob/main/framing_format.txt. A file
that is cut off is an error, never its end.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.copy.errors import DumpError
from sluice.relay.storage import Storage

PIECE_BYTES = 4 << 20
_SNAPPY_HEAD = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_BYTES = 65536
"""Data of a chunk, by the format."""
_TRUNCATED_HINT = "the file is cut off: copy it again, or dump again"


def compression(name: str) -> str:
    """Return the compression by a file's name: "gzip", "zstd", "snappy" or "" for none."""
    suffix = name.rpartition(".")[2].lower()
    return {
        "gz": "gzip",
        "gzip": "gzip",
        "zst": "zstd",
        "zstd": "zstd",
        "snappy": "snappy",
        "snz": "snappy",
    }.get(suffix, "")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of a file's bytes: to `hi` of a plain file, None: to its end.

    `size`: bytes of the file when it was listed.
    """

    lo: int = 0
    hi: int | None = None
    size: int | None = None

    @property
    def ends_file(self) -> bool:
        """Return whether nothing comes behind it."""
        return self.hi is None or self.hi == self.size


def read_decompressed(
    storage: Storage, name: str, span: ByteRange | None = None
) -> Iterator[bytes]:
    """Yield the content of a file, or of a span of it, decompressed. Raises DumpError, OSError."""
    how = compression(name)
    raw = _read_raw(storage, name, span or ByteRange())
    yield from _READERS[how](name, raw) if how else raw


def read_head(storage: Storage, name: str, size: int) -> bytes:
    """Return the first bytes of the content, at least `size` if there are as many.

    Raises DumpError, OSError.
    """
    found = b""
    for piece in read_decompressed(storage, name):
        found += piece
        if len(found) >= size:
            break
    return found


def split_points(
    storage: Storage, name: str, size: int, ends: tuple[bytes, ...], most: int
) -> list[tuple[int, int]]:
    """Return ranges of about `most` bytes that cover a plain file of `size` bytes.

    Each but the first begins behind one of the texts `ends`, which are ends of rows wherever they
    stand.
    """
    bounds = [0]
    with storage.open(name) as file:
        while size - bounds[-1] > most * 3 // 2:
            at = _find_end_behind(file, bounds[-1] + most, size, ends)
            if at is None:
                break
            bounds.append(at)
    return list(zip(bounds, [*bounds[1:], size], strict=True))


def _find_end_behind(
    file: pa.NativeFile, at: int, size: int, ends: tuple[bytes, ...]
) -> int | None:
    window = b""
    file.seek(at)
    while at + len(window) < size:
        window += file.read(min(1 << 16, size - at - len(window)))
        found = [place + len(end) for end in ends if (place := window.find(end)) >= 0]
        if found:
            behind = at + min(found)
            return behind if behind < size else None
    return None


def _read_raw(storage: Storage, name: str, span: ByteRange) -> Iterator[bytes]:
    try:
        opened = storage.open(name)
    except FileNotFoundError:
        raise DumpError(
            name, None, "the file is gone: put it back, it belongs to what was planned"
        ) from None
    with opened as file:
        size = file.size()
        if span.size not in (None, size):
            raise DumpError(
                name,
                None,
                f"the file has {size} bytes, {span.size} when the copy was planned."
                f" {_TRUNCATED_HINT}",
            )
        file.seek(span.lo)
        left = (size if span.hi is None else span.hi) - span.lo
        while left > 0:
            piece = file.read(min(PIECE_BYTES, left))
            if not piece:
                raise DumpError(name, None, _TRUNCATED_HINT)
            left -= len(piece)
            yield piece


def _gunzip(name: str, raw: Iterator[bytes]) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(31)
    done = 0
    for piece in raw:
        data = piece
        while data:
            if decompressor.eof:  # a file may hold several members
                decompressor = zlib.decompressobj(31)
            try:
                out = decompressor.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise DumpError(name, done, f"it isn't gzip from here on: {error}") from error
            data = decompressor.unconsumed_tail or decompressor.unused_data
            done += len(out)
            yield out
    if not decompressor.eof:
        raise DumpError(name, done, _TRUNCATED_HINT)


def _unzstd(name: str, raw: Iterator[bytes]) -> Iterator[bytes]:
    stream = pa.CompressedInputStream(pa.PythonFile(_PieceReader(raw), mode="r"), "zstd")
    done = 0
    while True:
        try:
            out = stream.read(PIECE_BYTES)
        except DumpError:
            raise
        except (OSError, ValueError) as error:
            if "Truncated" in str(error):
                raise DumpError(name, done, _TRUNCATED_HINT) from error
            raise DumpError(name, done, f"it isn't Zstandard from here on: {error}") from error
        if not out:
            break
        done += len(out)
        yield out
    if not done:
        raise DumpError(name, done, _TRUNCATED_HINT)


class _PieceReader:
    """A file to read from, for pyarrow."""

    closed = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        found, self._rest = self._rest[:size], self._rest[size:]
        return bytes(found)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _unsnappy(name: str, raw: Iterator[bytes]) -> Iterator[bytes]:
    import google_crc32c

    codec = pa.Codec("snappy")
    rest, done, begun = b"", 0, False
    for piece in raw:
        rest += piece
        at = 0
        while len(rest) - at >= 4:
            size = int.from_bytes(rest[at + 1 : at + 4], "little")
            if len(rest) - at < 4 + size:
                break
            kind, body = rest[at], rest[at + 4 : at + 4 + size]
            if not begun and rest[at : at + len(_SNAPPY_HEAD)] != _SNAPPY_HEAD:
                raise DumpError(name, 0, "it isn't in Snappy's framing format")
            begun = True
            at += 4 + size
            if kind in (0, 1):
                try:
                    out = (
                        codec.decompress(body[4:], _uncompressed(body[4:]), asbytes=True)
                        if kind == 0
                        else body[4:]
                    )
                except (OSError, ValueError) as error:
                    raise DumpError(name, done, f"it isn't Snappy from here on: {error}") from error
                crc = google_crc32c.value(out)
                if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != int.from_bytes(
                    body[:4], "little"
                ):
                    raise DumpError(name, done, "its checksum is wrong from here on")
                done += len(out)
                yield out
            elif kind < 0x80:
                raise DumpError(name, done, f"a chunk of the unknown type {kind:#x}")
        rest = rest[at:]
    if rest or not begun:
        raise DumpError(name, done, _TRUNCATED_HINT)


def _uncompressed(body: bytes) -> int:
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if size > _SNAPPY_BYTES:
                raise ValueError(f"a chunk of {size} bytes, {_SNAPPY_BYTES} are allowed")
            return size
    raise ValueError("no length")


_READERS: dict[str, Callable[[str, Iterator[bytes]], Iterator[bytes]]] = {
    "gzip": _gunzip,
    "zstd": _unzstd,
    "snappy": _unsnappy,
}
