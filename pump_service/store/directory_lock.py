"""One process a data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sluice.pump_service.store.errors import StoreLockedError


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
