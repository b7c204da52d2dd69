"""The jobs that aren't over: one document, changed by compare-and-set.

So of two processes that create jobs that touch the same at a time one sees the other.

    open-jobs/<number>.json   {"open": [specification, …], "made": {kind: how many there have been}}

A job that is over may still be listed if its process died too early: the next job's creation
removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sluice.relay.jobs.spec import JobSpec
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["OpenJobs", "open_register"]

_FOLDER = "open-jobs"
_MAX_VERSIONS = 64


@dataclass(frozen=True, slots=True)
class OpenJobs(JsonDocument):
    """The jobs that aren't over, in order of creation, and the number of jobs ever, by kind."""

    JSON_COMPLETE: ClassVar = True
    JSON_NAME: ClassVar = "the list of open jobs"

    open: tuple[JobSpec, ...] = ()
    made: Mapping[str, int] = field(default_factory=dict)

    def with_job(self, spec: JobSpec) -> OpenJobs:
        """Return the register with this job, too."""
        return OpenJobs(
            (*self.open, spec), {**self.made, spec.kind: self.made.get(spec.kind, 0) + 1}
        )

    def without(self, *names: str) -> OpenJobs:
        """Return the register without the jobs that are over."""
        return replace(self, open=tuple(spec for spec in self.open if spec.id not in names))

    def next_id(self, kind: str) -> str:
        """Return an unused name: the kind for the first job, then with a number."""
        number = self.made.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}-{number}"


def open_register(storage: Storage) -> VersionedDocument[OpenJobs]:
    """Open the list in a relay log."""
    form = DocumentFormat(
        OpenJobs.to_bytes, OpenJobs.from_bytes, OpenJobs, "restore the file from a copy"
    )
    return VersionedDocument(storage, _FOLDER, form, _MAX_VERSIONS)
