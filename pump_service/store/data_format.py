"""Check which format a pump's data directory has.

Value log and index have the original Pump's format, which carries no version. A release that
changes either so that an older release would misread or cut it first writes the file `.format`
beside them: one line, a whole number. Without the file, as in every directory of the original's,
the format is 1. Format 2 has what a pump captures from TiKV: index.py has its keys.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sluice.pump_service.store.errors import MixedDataError, NewerDataError, StoreLockedError

FORMAT = 2
"""The newest format that this version reads."""

CAPTURED_FORMAT = 2
"""Of a directory of captured transactions, in which a commit timestamp may belong to several."""

FORMAT_FILE = ".format"


def refuse_newer(data_dir: Path) -> int:
    """Return the directory's format. Changes nothing.

    Raises NewerDataError if this version can't read it, OSError.
    """
    path = data_dir / FORMAT_FILE
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return 1
    if not text.isdecimal() or int(text) > FORMAT:
        raise NewerDataError(
            f"value log and index have format {text[:20]!r} by {path}; this version of the pump"
            f" reads {FORMAT}",
            hint=NewerDataError.hint,
        )
    return int(text)


def open_format(data_dir: Path, *, is_captured: bool) -> bool:
    """Return whether a directory holds captured transactions; a new one does if `is_captured`.

    Raises MixedDataError if it has binlogs and `is_captured` is asked for, OSError.
    """
    path = data_dir / FORMAT_FILE
    if path.exists():
        return int(path.read_text(encoding="ascii")) == CAPTURED_FORMAT
    if not is_captured:
        return False
    if (data_dir / "value").exists() or (data_dir / "kv").exists():
        raise MixedDataError(
            f"{data_dir} has binlogs that TiDB sent: what is captured from TiKV can't join them"
        )
    new = path.with_name(f"{FORMAT_FILE}.new")
    with new.open("w", encoding="ascii") as file:
        file.write(f"{CAPTURED_FORMAT}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def lock_directory(data_dir: Path) -> int:
    """Return a descriptor that locks the directory until it is closed.

    Raises StoreLockedError if another process holds it.
    """
    path = data_dir / ".lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StoreLockedError(
            f"{path} is locked: another pump is running on {data_dir}; stop it, or give this one"
            " another data-dir"
        ) from error
    return fd
