"""The jobs that aren't over: one document, changed by compare-and-set.

So of two processes that create jobs that touch the same at a time one sees the other.

    open-jobs/<number>.json   {"open": [specification, …], "made": {kind: how many there have been}}

A job that is over may still be listed if its process died too early: the next job's creation
removes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sluice.relay.format_version import parse_json
from sluice.relay.jobs.spec import JobSpec
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["OpenJobs", "open_register"]

_FOLDER = "open-jobs"
_MAX_VERSIONS = 64


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """The jobs that aren't over, in order of creation, and the number of jobs ever, by kind."""

    open: tuple[JobSpec, ...] = ()
    made: Mapping[str, int] = field(default_factory=dict)

    def with_job(self, spec: JobSpec) -> OpenJobs:
        """And this one."""
        return OpenJobs(
            (*self.open, spec), {**self.made, spec.kind: self.made.get(spec.kind, 0) + 1}
        )

    def without(self, *names: str) -> OpenJobs:
        """Without those that are over."""
        return replace(self, open=tuple(spec for spec in self.open if spec.id not in names))

    def next_id(self, kind: str) -> str:
        """Return an unused name: the kind for the first job, then with a number."""
        number = self.made.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}-{number}"

    def to_json(self) -> bytes:
        """Return the file's content."""
        document: dict[str, Any] = {
            "open": [spec.to_json() for spec in self.open],
            "made": dict(self.made),
        }
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the file's content. Raises ValueError."""
        try:
            document = parse_json(data, "the list of open jobs")
            return cls(tuple(map(JobSpec.from_json, document["open"])), document["made"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no list of jobs: {error!r}") from None


def open_register(storage: Storage, former: Callable[[], OpenJobs]) -> VersionedDocument[OpenJobs]:
    """Open the list in a relay log; `former` gives its content before there is one."""
    form = DocumentFormat(
        OpenJobs.to_json, OpenJobs.from_json, former, "restore the file from a copy"
    )
    return VersionedDocument(storage, _FOLDER, form, _MAX_VERSIONS)
