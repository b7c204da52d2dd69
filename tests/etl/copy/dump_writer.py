"""A Dumpling folder written value by value, as the Go program writes it.

Shares nothing with the code that reads it.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import zstandard

POSITION = 470629592140349448
NUMBER = ("int", "float", "double", "decimal")


@dataclass(frozen=True)
class Way:
    """The options Dumpling was given."""

    form: str = "sql"
    escapes: bool = True
    separator: bytes = b","
    delimiter: bytes = b'"'
    terminator: bytes = b"\r\n"
    header: bool = True
    null: bytes = b"\\N"
    rows_per_statement: int = 3


def metadata(position: int = POSITION) -> bytes:
    return (
        "Started dump at: 2026-11-22 01:03:38\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos:"
        f" {position}\n\tGTID:\n\nFinished dump at: 2026-11-22 01:03:38\n"
    ).encode()


def backslashed(raw: bytes, letters: dict[int, bytes]) -> bytes:
    return b"".join(b"\\" + letters[byte] if byte in letters else bytes((byte,)) for byte in raw)


def sql_value(kind: str, unsigned: bool, value: Any, way: Way) -> bytes:
    if value is None:
        return b"NULL"
    if kind in ("binary", "bit"):
        return b"x'" + value.hex().encode() + b"'"
    if kind in NUMBER and not unsigned:
        return value
    if not way.escapes:
        return b"'" + value.replace(b"'", b"''") + b"'"
    letters = {0: b"0", 10: b"n", 13: b"r", 92: b"\\", 39: b"'", 34: b'"', 26: b"Z"}
    return b"'" + backslashed(value, letters) + b"'"


def csv_value(kind: str, unsigned: bool, value: Any, way: Way) -> bytes:
    if value is None:
        return way.null
    if kind in NUMBER and not unsigned:
        return value
    return csv_text(value, way)


def csv_text(value: bytes, way: Way) -> bytes:
    if way.escapes:
        special = (way.delimiter or way.separator)[0]
        value = backslashed(
            value, {0: b"0", 13: b"r", 10: b"n", 92: b"\\"} | {special: bytes((special,))}
        )
    else:
        value = value.replace(way.delimiter, way.delimiter * 2)
    return way.delimiter + value + way.delimiter


def content(
    name: str, columns: Sequence[tuple[str, str, bool]], rows: Sequence[Sequence[Any]], way: Way
) -> bytes:
    """`columns`: (name, kind, unsigned); values are bytes as TiDB prints them."""
    if way.form == "csv":
        lines = (
            [way.separator.join(csv_text(c[0].encode(), way) for c in columns)]
            if way.header
            else []
        )
        lines += [
            way.separator.join(csv_value(c[1], c[2], v, way) for c, v in zip(columns, row))
            for row in rows
        ]
        return b"".join(line + way.terminator for line in lines)
    out = b"/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n/*!40101 SET NAMES binary*/;\n"
    for at in range(0, len(rows), way.rows_per_statement):
        some = rows[at : at + way.rows_per_statement]
        texts = [
            b"(" + b",".join(sql_value(c[1], c[2], v, way) for c, v in zip(columns, row)) + b")"
            for row in some
        ]
        out += (
            b"INSERT INTO `"
            + name.replace("`", "``").encode()
            + b"` VALUES\n"
            + b",\n".join(texts)
            + b";\n"
        )
    return out


def compressed(data: bytes, suffix: str) -> bytes:
    match suffix:
        case "":
            return data
        case ".gz":
            half = len(data) // 2
            return gzip.compress(data[:half]) + gzip.compress(data[half:])  # two members
        case ".zst":
            half = len(data) // 2
            return zstandard.compress(data[:half]) + zstandard.compress(data[half:])  # two frames
    out = b"\xff\x06\x00\x00sNaPpY"
    for at in range(0, len(data), 1000):
        part = data[at : at + 1000]
        crc = google_crc32c.value(part)
        body = (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
        body += pa.Codec("snappy").compress(part, asbytes=True)
        out += b"\x00" + len(body).to_bytes(3, "little") + body
    return out


def write(folder: Path, files: dict[str, bytes], position: int = POSITION) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {"metadata": metadata(position), **files}.items():
        (folder / name).write_bytes(data)
    return str(folder)
