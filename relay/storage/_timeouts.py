"""A time-out for calls that have none of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class CallTimeout:
    """Calls functions in threads of their own and waits at most `seconds` for each.

    `name` is used in errors.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds

    def call(
        self, what: str, function: Callable[..., Result], *args: Any, **options: Any
    ) -> Result:
        """Return the function's result, or raise its error.

        Raises TimeoutError after the time limit; the call goes on by itself then, so its effect may
        still come.
        """
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((True, function(*args, **options)))
            except BaseException as error:
                answers.put((False, error))

        threading.Thread(target=run, name="relay-storage", daemon=True).start()
        try:
            good, answer = answers.get(timeout=self._seconds)
        except queue.Empty:
            raise TimeoutError(
                f"{self._name}: {what} took longer than {self._seconds:g} s"
            ) from None
        if not good:
            raise answer
        result: Result = answer
        return result
