"""Asks several parties side by side, and waits for none of them longer than a few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from errors import DefectError, ours

__all__ = ["Answers", "ask"]

log = logging.getLogger("sluice")


@dataclass(slots=True)
class Answers:
    """What was said, and by whom nothing was, with the reason."""

    said: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def ask(parties: Mapping[str, Callable[[], Any]], patience_s: float) -> Answers:
    """What each function returns, all called at once. One that takes longer is left alone, and what it would have said
    is lost.
    """
    outcomes: dict[str, Any] = {}

    def call(name: str, question: Callable[[], Any]) -> None:
        try:
            outcomes[name] = question()
        except Exception as error:
            outcomes[name] = _Failed(error)

    threads = {
        name: threading.Thread(target=call, args=(name, question), name=f"overview-{name}", daemon=True)
        for name, question in parties.items()
    }
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + patience_s
    for thread in threads.values():
        thread.join(max(0.0, until - time.monotonic()))
    answers = Answers()
    for name in parties:
        found = outcomes.get(name, _Failed(TimeoutError(f"no answer within {patience_s:.0f} s")))
        if isinstance(found, _Failed):
            answers.errors[name] = found.told
        else:
            answers.said[name] = found
    return answers


class _Failed:
    def __init__(self, error: Exception) -> None:
        told = ours(error)
        if isinstance(told, DefectError):
            log.error("part of the overview is missing: %s", told, exc_info=error)
        self.told = str(told)
