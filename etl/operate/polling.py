"""Asks several parties side by side, and waits for none of them longer than a moment: what one said before stands in
the place of what it doesn't say now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import DefectError, Signal, ours

__all__ = ["DependencyUnavailable", "PollResults", "SourcePoller"]

log = logging.getLogger("sluice")

Question = Callable[[], Any]
_WARN_AFTER_S = 3.0
"""Who takes longer is said not to answer; until then he may yet."""


class DependencyUnavailable(Signal):
    """A question can't be asked, as another party doesn't answer first: nothing is known of the one it is for."""


@dataclass(slots=True)
class PollResults:
    """What was said, now or before, and who doesn't answer, with the reason. Moments are Unix ms."""

    said: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    silent_ms: dict[str, int] = field(default_factory=dict)
    """Since when those in `errors` don't answer."""
    as_of_ms: dict[str, int] = field(default_factory=dict)
    """When it was said."""
    missing: set[str] = field(default_factory=set)
    """Those in `errors`, those who couldn't be asked, and those who have never said anything yet."""


class SourcePoller:
    """Parties by name, and what each said last. Each is asked by one thread at a time, so one that never answers costs
    a thread, however often one looks. Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[str, _Source] = {}

    def ask(self, questions: Mapping[str, Question], patience_s: float) -> PollResults:
        """What each function returns, all called at once. Who takes longer than `patience_s` goes on in the background,
        is not asked a second time meanwhile, and not waited for again.
        """
        parties = [self._source(name) for name in questions]
        for party, question in zip(parties, questions.values(), strict=True):
            party.begin(question)
        answers = PollResults()
        for party in parties:
            party.wait(patience_s)
            party.tell(answers)
        return answers

    def latest(self, name: str, patience_s: float) -> Any:
        """What a party that is being asked says, or said last. Raises UnaskedError if it has never said anything."""
        party = self._source(name)
        party.wait(patience_s)
        if not party.updated_ms:
            raise DependencyUnavailable(f"{name} has not answered")
        return party.said

    def _source(self, name: str) -> _Source:
        with self._lock:
            return self._sources.setdefault(name, _Source(name))


class _Source:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started = 0.0
        self.said: Any = None
        self.updated_ms = 0
        self._error = ""
        self._unresponsive_since_ms = 0
        self._is_blocked = False

    def begin(self, question: Question) -> None:
        with self._lock:
            if self._thread is None:
                self._started = time.monotonic()
                name = f"asking-{self._name}"
                self._thread = threading.Thread(target=self._ask, args=(question,), name=name, daemon=True)
                self._thread.start()

    def wait(self, patience_s: float) -> None:
        """Until it has answered, or was asked so long ago."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, self._started + patience_s - time.monotonic()))

    def tell(self, answers: PollResults) -> None:
        with self._lock:
            if self.updated_ms:
                answers.said[self._name], answers.as_of_ms[self._name] = self.said, self.updated_ms
            if error := self._error_text():
                answers.errors[self._name] = error
                answers.silent_ms[self._name] = self._unresponsive_since_ms or self._started_ms()
            if error or self._is_blocked or not self.updated_ms:
                answers.missing.add(self._name)

    def _error_text(self) -> str:
        """Why it doesn't answer, "" if it does, or may yet."""
        if self._error or self._thread is None:
            return self._error
        waited_s = time.monotonic() - self._started
        return f"no answer within {waited_s:.0f} s" if waited_s >= _WARN_AFTER_S else ""

    def _started_ms(self) -> int:
        return round(time.time() * 1000 - (time.monotonic() - self._started) * 1000)

    def _ask(self, question: Question) -> None:
        try:
            said = question()
        except DependencyUnavailable:
            self._end("", unasked=True)
        except Exception as error:
            self._end(_error_text(error))
        else:
            with self._lock:
                self.said, self.updated_ms = said, time.time_ns() // 1_000_000
            self._end("")

    def _end(self, error: str, *, unasked: bool = False) -> None:
        with self._lock:
            self._unresponsive_since_ms = (self._unresponsive_since_ms or self._started_ms()) if error else 0
            self._error, self._is_blocked, self._thread = error, unasked, None


def _error_text(error: Exception) -> str:
    told = ours(error)
    if isinstance(told, DefectError):
        log.error("part of what was asked for is missing: %s", told, exc_info=error)
    return str(told)
