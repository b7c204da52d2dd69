"""Watch the free space of the data directory's disk."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

log = logging.getLogger(__name__)


class SpaceWatch:
    """Read the file system's free space every `interval_s`.

    `writable` is whether more than `threshold` bytes are free.
    """

    def __init__(self, path: Path, threshold: int, interval_s: float) -> None:
        self._path, self._threshold, self._interval = path, threshold, interval_s
        self._stop = threading.Event()
        self.capacity = self.available = 0
        self.writable = True
        self._thread = threading.Thread(target=self._run, name="pump-space", daemon=True)
        self.refresh()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def refresh(self) -> None:
        """Read the figures now: bytes, in units of the file system's fragment size."""
        figures = os.statvfs(self._path)
        self.capacity = figures.f_blocks * figures.f_frsize
        self.available = figures.f_bavail * figures.f_frsize
        writable = self.available > self._threshold
        if writable != self.writable:
            self.writable = writable
            log.log(
                logging.INFO if writable else logging.ERROR,
                "%s: %d bytes available, threshold %d: %s",
                self._path,
                self.available,
                self._threshold,
                "accepting writes again" if writable else "only fake binlogs are accepted",
            )

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.refresh()
            except OSError as error:
                log.error("%s: can't read the free space: %s", self._path, error)
