"""The most memory that processes take while something is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil


class Peak:
    """A context that keeps the largest of every size that `rss` gives, ten times a second.

    The sizes are bytes, by name.
    """

    def __init__(self, rss: Callable[[], dict[str, int]]) -> None:
        self._rss = rss
        self._most: dict[str, int] = {}
        self.own_cpu_s = 0.0
        """CPU time that looking has cost this process, once it is over."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> dict[str, int]:
        self._thread.start()
        return self._most

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            try:
                for name, size in self._rss().items():
                    self._most[name] = max(self._most.get(name, 0), size)
            except psutil.NoSuchProcess:  # a worker came to its end while it was looked at
                pass
            if self._over.wait(0.1):
                self.own_cpu_s = time.thread_time()
                return
