"""Find where a folder of binlog files ends, whatever happened to the process that wrote them."""

from __future__ import annotations

import logging
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from sluice.etl.changes.formats.binlog_file import (
    COMPRESSED_SUFFIX,
    FOOTER,
    HEADER,
    MAGIC,
    BinlogFileError,
    BinlogFileName,
    DamagedRecordError,
    commit_ts_of,
    list_files,
    read_file,
)
from sluice.etl.downstream import Savepoint, sync_folder

log = logging.getLogger("sluice.apply")

_MAGIC = MAGIC.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class LogTail:
    """The newest file (None: there is none), the bytes in it, and its last commit timestamp.

    The timestamp is a TSO, 0 if no record was read.
    """

    path: Path | None = None
    offset: int = 0
    commit_ts: int = 0


def find_tail(folder: Path, savepoint: Savepoint | None) -> LogTail:
    """Find where the durable part of the files ends, and cut off the rest.

    What was written after the savepoint is cut off, and written again. Nothing less is safe: after
    a write that failed, the page cache still holds what the disk doesn't, without an error. Raises
    BinlogFileError when files aren't as they were left, and OSError.
    """
    files = list_files(folder)
    if savepoint is None or savepoint.place is None:
        return _tail_of_unknown(files)
    end, later = LogTail(), files
    if savepoint.place:
        place = BinlogFileName.parse(savepoint.place)
        indexes = [_index(path) for path in files]
        if place is None or place.index not in indexes:
            raise BinlogFileError(
                f"{folder / savepoint.place} is not there, which the savepoint names as the file"
                " that was written last: bring the files back, or, to begin a new folder of files"
                " at the savepoint's commitTS, remove the [sluice] part from the savepoint file"
            )
        at = indexes.index(place.index)
        end, later = (
            LogTail(files[at], savepoint.offset, savepoint.checkpoint.commit_ts),
            files[at + 1 :],
        )
        if not files[at].name.endswith(COMPRESSED_SUFFIX):
            _truncate(files[at], savepoint.offset)
    for path in reversed(later):
        log.warning("%s was begun after the savepoint: removed; it is written again", path)
        path.unlink()
    if later:
        sync_folder(folder)
    return end


def _truncate(path: Path, offset: int) -> None:
    size = path.stat().st_size
    if size < offset:
        raise BinlogFileError(
            f"{path} has {size} bytes, but {offset} were durable when the savepoint was written:"
            " another program cut it, or the disk lost data. Bring the file back, or begin at an"
            " earlier commitTS in a new folder"
        )
    if size > offset:
        log.warning(
            "%s: %d bytes were written after the savepoint: cut off; they are written again",
            path,
            size - offset,
        )
        with path.open("r+b") as file:
            file.truncate(offset)
            os.fsync(file.fileno())


def _tail_of_unknown(files: list[Path]) -> LogTail:
    """Find the tail of files that a Drainer left, from their contents alone."""
    newest: LogTail | None = None
    for path in reversed(files):
        end = _read_to_end(path, may_cut=newest is None)
        newest = newest or end
        if end.commit_ts:
            return LogTail(newest.path, newest.offset, end.commit_ts)
    return newest or LogTail()


def _read_to_end(path: Path, *, may_cut: bool) -> LogTail:
    offset = commit_ts = 0
    try:
        for behind, message in read_file(path, offset):
            found = commit_ts_of(message)
            if found < commit_ts:
                raise BinlogFileError(
                    f"{path}: commit_ts {found} at byte {offset} follows {commit_ts}: two processes"
                    f" wrote to it; {_truncate_hint(offset)}"
                )
            commit_ts, offset = found, behind
    except ValueError as error:
        raise BinlogFileError(f"{path}: the record at byte {offset} is {error}") from error
    except DamagedRecordError as error:
        damage = error.offset
        if not may_cut or path.name.endswith(COMPRESSED_SUFFIX):
            raise BinlogFileError(
                f"{error.args[0]}, and there are later files: bring back an undamaged copy"
            ) from error
        if _has_readable_behind(path, damage):
            raise BinlogFileError(
                f"{error.args[0]}, but behind it are whole ones: a Drainer went on behind what a"
                f" crash had left, and no reader gets past it; {_truncate_hint(damage)} and set"
                f" commitTS in the savepoint file to {commit_ts}, so that the rest is written again"
            ) from error
        log.warning("%s: cut off there; it is written again", error.args[0])
        with path.open("r+b") as file:
            file.truncate(damage)
            os.fsync(file.fileno())
        offset = damage
    return LogTail(path, offset, commit_ts)


def _truncate_hint(offset: int) -> str:
    return f"cut the file there (truncate -s {offset})"


def _has_readable_behind(path: Path, damage: int) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_MAGIC, damage + 1)
        while 0 <= at <= len(data) - HEADER.size:
            _, size = HEADER.unpack_from(data, at)
            end = at + HEADER.size + size
            if (
                size
                and end + FOOTER.size <= len(data)
                and FOOTER.unpack_from(data, end)[0]
                == google_crc32c.value(data[at + HEADER.size : end])
            ):
                return True
            at = data.find(_MAGIC, at + 1)
    return False


def _index(path: Path) -> int:
    name = BinlogFileName.parse(path.name)
    assert name is not None
    return name.index
