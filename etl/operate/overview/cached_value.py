"""What takes long to find out, or may take long: found out in the background, and told as it was found last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["CachedValue"]

T = TypeVar("T")


class CachedValue(Generic[T]):
    """The newest answer to a question that is asked every `fresh_s` seconds, when somebody wants to know. Threads may
    share it.
    """

    def __init__(self, question: Callable[[], T], fresh_s: float, first_s: float) -> None:
        """`first_s`: so long the first who wants to know waits for an answer."""
        self._compute = question
        self._ttl_s = fresh_s
        self._first_wait_s = first_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due = 0.0
        self._value: T | None = None
        self._error: Exception | None = None

    def newest(self) -> T | None:
        """What was found last, None while nothing is. Raises what asking raised last."""
        with self._lock:
            is_first = self._thread is None
            if time.monotonic() >= self._due and (self._thread is None or not self._thread.is_alive()):
                self._due = time.monotonic() + self._ttl_s
                self._thread = threading.Thread(target=self._ask, name="overview-background", daemon=True)
                self._thread.start()
            thread = self._thread
        if is_first and thread is not None:
            thread.join(self._first_wait_s)
        if self._error is not None:
            raise self._error
        return self._value

    def _ask(self) -> None:
        try:
            self._value, self._error = self._compute(), None
        except Exception as error:
            self._error = error
