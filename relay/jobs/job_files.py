"""A job's files, by name; each kind of document is described in its own module.

<url>/jobs/<id>/spec.json             the request
<url>/jobs/<id>/plan.json             the plan, made once, in the kind's own terms
<url>/jobs/<id>/state/<number>.json   its state; the newest counts: `sluice.relay.jobs.state_log`
<url>/jobs/<id>/progress/<run>/…      its progress: `sluice.relay.jobs.progress`
<url>/jobs/<id>/result.json           its end, or the failure; stays
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from sluice.relay.errors import RelayCorruptError
from sluice.relay.format_version import NewerFormatError, parse_json
from sluice.relay.jobs.open_jobs import OpenJobs
from sluice.relay.jobs.progress import (
    JobProgress,
    TableProgress,
    WorkerProgress,
)
from sluice.relay.jobs.spec import JobSpec
from sluice.relay.jobs.state_log import (
    FAILED,
    FINAL_STATES,
    PLANNED,
    StateEntry,
    open_history,
)
from sluice.relay.json_codec import from_bytes, to_bytes
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import VersionedDocument

__all__ = ["JobFiles"]

_TOTALS_FILE = "base.json"


class JobFiles:
    """The files of one job."""

    def __init__(
        self, storage: Storage, spec: JobSpec, register: VersionedDocument[OpenJobs]
    ) -> None:
        self._storage = storage
        self._register = register
        self.spec = spec
        self.id = spec.id
        self.history = open_history(storage, spec.id, self._first)

    @property
    def url(self) -> str:
        """Return the folder of the files."""
        return f"{self._storage.url}/jobs/{self.id}"

    def path(self, name: str) -> str:
        """Return a file's path in the relay log's storage."""
        return f"jobs/{self.id}/{name}"

    def write_spec(self) -> None:
        """Write the specification to a file of its own."""
        with contextlib.suppress(FileExistsError):
            self._storage.create(self.path("spec.json"), _text(self.spec.to_json()))

    def plan(self) -> dict[str, Any] | None:
        """Return the plan, None if none was saved yet."""
        return self._read("plan.json")

    def save_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the plan; the one that is kept, which is another process's if that was first."""
        with contextlib.suppress(FileExistsError):
            self._storage.create(self.path("plan.json"), _text(plan))
        found = self.plan()
        assert found is not None
        return found

    def result(self) -> dict[str, Any] | None:
        """Return what `settle` wrote last, None if the job hasn't ended."""
        return self._read("result.json")

    def settle(self, entry: StateEntry) -> None:
        """Record the job's end after its entry was made; if it is over, release what it touches."""
        if entry.state in (*FINAL_STATES, FAILED):
            document = {
                "state": entry.state, "by": entry.by, "made_ms": entry.made_ms,
                "message": entry.message, "hint": entry.hint, "result": entry.result,
            }  # fmt: skip
            self._storage.replace(self.path("result.json"), _text(document))
        if entry.state in FINAL_STATES:
            self.write_spec()
            self._register.change(lambda jobs: jobs.without(self.id))

    # Progress

    def write_totals(self, run: int, tables: Mapping[str, TableProgress]) -> None:
        """Write the totals with which a run begins."""
        self._storage.replace(self.path(f"progress/{run}/{_TOTALS_FILE}"), to_bytes(tables))

    def write_member(self, run: int, member: WorkerProgress) -> None:
        """Write a process's progress."""
        self._storage.replace(
            self.path(f"progress/{run}/{member.runner.token}.json"), member.to_bytes()
        )

    def members(self, run: int) -> list[WorkerProgress]:
        """Return the last progress of each of a run's processes.

        Raises RelayCorruptError, OSError.
        """
        folder = self.path(f"progress/{run}")
        return [
            self._parsed(f"{folder}/{name}", WorkerProgress.from_bytes)
            for name in self._storage.names(folder)
            if name != _TOTALS_FILE
        ]

    def progress(self, run: int) -> JobProgress:
        """Return how far a run is. Raises RelayCorruptError, OSError."""
        return JobProgress.from_members(self.totals(run), self.members(run))

    def totals(self, run: int) -> dict[str, TableProgress]:
        """Return the totals with which a run began; {} if none were written.

        Raises RelayCorruptError, OSError.
        """
        try:
            found: dict[str, TableProgress] = self._parsed(
                self.path(f"progress/{run}/{_TOTALS_FILE}"),
                lambda data: from_bytes(dict[str, TableProgress], data, "the totals of a job"),
            )
        except FileNotFoundError:
            return {}
        return found

    # Inside

    def _first(self) -> StateEntry:
        """Return the entry before the first one that is written."""
        return StateEntry(PLANNED, self.spec.by, self.spec.made_ms)

    def remove(self) -> None:
        """Remove the job's files, the specification last."""
        self._remove(f"jobs/{self.id}", last="spec.json")

    def _remove(self, folder: str, last: str = "") -> None:
        files = self._storage.sizes(folder)
        for name in self._storage.names(folder):
            if name not in files:
                self._remove(f"{folder}/{name}")
        for name in sorted(files, key=lambda name: name == last):
            self._storage.remove(f"{folder}/{name}")
        self._storage.remove_empty_directory(folder)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._parsed(
                self.path(name), lambda data: parse_json(data, "the document")
            )
        except FileNotFoundError:
            return None
        return found

    def _parsed(self, path: str, parse: Any) -> Any:
        try:
            return parse(self._storage.read(path))
        except NewerFormatError as error:
            raise error.at(f"{self._storage.url}/{path}") from None
        except ValueError as error:
            raise RelayCorruptError(
                f"{self._storage.url}/{path}: {error}", hint="restore the file from a copy"
            ) from None


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"
