"""A job's state: a chain of entries, each made from the one before by compare-and-set.

The newest counts. A process that runs the job has taken it by an entry of its own, with the next
number for its run. The end of a job is an entry, too, made only while the newest is of its run: so
a process that was taken for dead, and wakes up, can't write one any more.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sluice.relay.jobs.runner import Runner
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = [
    "CANCELLED",
    "CANCELLING",
    "DONE",
    "FAILED",
    "FINAL_STATES",
    "INTERRUPTED",
    "PAUSED",
    "PAUSING",
    "PLANNED",
    "RUNNING",
    "STATES",
    "StateEntry",
]

PLANNED = "planned"
RUNNING = "running"
PAUSING = "pausing"
PAUSED = "paused"
CANCELLING = "cancelling"
CANCELLED = "cancelled"
FAILED = "failed"
INTERRUPTED = "interrupted"
"""The process that ran it has died; no entry has this state, `Job.status` finds it out."""
DONE = "done"
STATES = (PLANNED, RUNNING, PAUSING, PAUSED, CANCELLING, CANCELLED, FAILED, INTERRUPTED, DONE)
ACTIVE_STATES = (RUNNING, PAUSING, CANCELLING)
"""States in which a process runs the job, or has died over it."""
FINAL_STATES = (CANCELLED, DONE)
"""States after which nothing follows; other jobs may touch the same."""


@dataclass(frozen=True, slots=True)
class StateEntry(JsonDocument):
    """A job's state.

    `by`: the person or process that caused it; `made_ms`: when; `run` counts the processes that
    took the job, `runner` is the last of them; `message` and `hint` belong to a failure, or to what
    a cancelled job leaves behind.
    """

    JSON_NAME: ClassVar = "the state of a job"

    state: str
    by: str
    made_ms: int
    run: int = 0
    runner: Runner | None = None
    message: str = ""
    hint: str = ""
    result: Mapping[str, Any] | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(6), compare=False)

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"unknown state {self.state!r} of a job")

    def then(self, state: str, by: str, **changes: Any) -> StateEntry:
        """Return the next entry; `message`, `hint` and `result` aren't carried over."""
        now = time.time_ns() // 1_000_000
        cleared = {"message": "", "hint": "", "result": None, **changes}
        return replace(self, state=state, by=by, made_ms=now, token=secrets.token_hex(6), **cleared)


def open_history(
    storage: Storage, name: str, first: Callable[[], StateEntry]
) -> VersionedDocument[StateEntry]:
    """Open the entries of a job; `first` gives its state before there are any."""
    form = DocumentFormat(
        StateEntry.to_bytes, StateEntry.from_bytes, first, "restore the file from a copy"
    )
    return VersionedDocument(storage, f"jobs/{name}/state", form)
