"""Implement the kernel in Python, for where it can't be compiled."""

# ruff: noqa: PLR0913 - the arguments are those of the compiled functions, which take them by position

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sluice.pump_service.store.binlog_head import HEAD_BYTES, parse_heads, rows_at
from sluice.pump_service.store.segment import HEADER, RECORD_MAGIC

Buffer: TypeAlias = Any
"""Anything whose bytes can be read or written."""
Ints = npt.NDArray[np.int64]

NOTHING, KNOWN, UNCHECKED, ODD = range(4)
"""What is at a place.

No record; a record whose first bytes tell what it is; the same with its CRC yet to be checked; a
record that must be read in full.
"""

_LOOK = HEADER.size + HEAD_BYTES
_HEADERS = np.dtype([("magic", "<u4"), ("length", "<i8"), ("crc", "<u4")])


def look(data: Buffer, base: int, offsets: Ints, into: Ints, /) -> None:
    """Read the heads of the records at `offsets` of a file into the rows of `into`.

    `data` has the file's bytes from `base` on. A row has length and crc of the payload, tp,
    start_ts and commit_ts of the message (0 of an ODD one), and what is there.
    """
    at = offsets - base
    inside = (at >= 0) & (at <= len(data) - HEADER.size)
    looks = rows_at(
        np.frombuffer(bytes(data) + bytes(_LOOK), np.uint8), np.where(inside, at, 0), _LOOK
    )
    headers = np.ascontiguousarray(looks[:, : HEADER.size]).view(_HEADERS).ravel()
    is_record = inside & (headers["magic"] == RECORD_MAGIC) & (headers["length"] != 0)
    into[:, 0], into[:, 1] = headers["length"], headers["crc"]
    into[:, 2], into[:, 3], into[:, 4], right = parse_heads(looks[:, HEADER.size :], into[:, 0])
    # Prewrites are checked when their payload is read; all else is small and decides what belongs
    # together.
    into[:, 5] = np.where(right, np.where(into[:, 2] == 0, KNOWN, UNCHECKED), ODD)
    into[~right, 2:5] = 0
    into[~is_record] = 0


def place(
    data: Buffer,
    base: int,
    offsets: Buffer,
    lengths: Buffer,
    crcs: Buffer,
    targets: Buffer,
    into: Buffer,
    /,
) -> bool:
    """Copy the payloads at `offsets` of a file, whose bytes from `base` are `data`, into `into`.

    Each goes to its target (all int64). Returns False if one isn't there or has another CRC. Here
    it is always False: the caller then reads them one by one.
    """
    return False
