"""What has become of a job: a chain of entries, each made from the one before by compare-and-set,
the newest counts.

A process that runs the job has taken it by an entry of its own, with the next number for its run.
Whatever a process says about the job's end is an entry, too, made only while the newest is of its
run: so one that was taken for dead, and wakes up, can't say anything any more.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from sluice.relay.format_version import parse_json
from sluice.relay.jobs.runner import Runner
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
"""The process that ran it has died; nobody writes this down, it is seen."""
DONE = "done"
STATES = (PLANNED, RUNNING, PAUSING, PAUSED, CANCELLING, CANCELLED, FAILED, INTERRUPTED, DONE)
ACTIVE_STATES = (RUNNING, PAUSING, CANCELLING)
"""Somebody runs it, or has died over it."""
FINAL_STATES = (CANCELLED, DONE)
"""Nothing more comes; what it touched is free for others."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """How a job stands.

    `by` whom it came there, and when; `run` counts those that took it, `runner` is the last of
    them; `said` and `way_out` are of a failure, or of what a cancelled job leaves behind.
    """

    state: str
    by: str
    made_ms: int
    run: int = 0
    runner: Runner | None = None
    said: str = ""
    way_out: str = ""
    result: Mapping[str, Any] | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(6), compare=False)

    def then(self, state: str, by: str, **changes: Any) -> StateEntry:
        """The next entry; what it said isn't carried over."""
        now = time.time_ns() // 1_000_000
        cleared = {"said": "", "way_out": "", "result": None, **changes}
        return replace(self, state=state, by=by, made_ms=now, token=secrets.token_hex(6), **cleared)

    def to_json(self) -> bytes:
        """As the file's content."""
        document = asdict(self)
        document["result"] = None if self.result is None else dict(self.result)
        document["runner"] = None if self.runner is None else self.runner.to_json()
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the file's content. Raises ValueError."""
        try:
            document = parse_json(data, "the state of a job")
            runner = document["runner"]
            entry = cls(
                **{**document, "runner": None if runner is None else Runner.from_json(runner)}
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no entry of a job: {error!r}") from None
        if entry.state not in STATES:
            raise ValueError(f"{entry.state!r} is no state of a job")
        return entry


def open_history(
    storage: Storage, name: str, first: Callable[[], StateEntry]
) -> VersionedDocument[StateEntry]:
    """The entries of a job; `first` is how it stands before there are any."""
    form = DocumentFormat(
        StateEntry.to_json, StateEntry.from_json, first, "restore the file from a copy"
    )
    return VersionedDocument(storage, f"jobs/{name}/state", form)
