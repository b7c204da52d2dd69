"""Results of verifications, among the pipeline's own files in the relay log.

verified/last/<number>.json         every table's last verification, in one document;
                                    the newest counts
verified/runs/<at_ms>-<job>.json    a run with its tables; the newest ones are kept
verified/look.json                  the status of continuous verification
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from sluice.relay.errors import RelayError
from sluice.relay.format_version import NewerFormatError
from sluice.relay.json_codec import JsonDocument, from_bytes, to_bytes
from sluice.relay.log import RelayLog
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = [
    "ARCHIVE",
    "CONTINUOUS",
    "UPSTREAM",
    "TableVerified",
    "VerificationMethod",
    "Verifications",
    "VerifiedRun",
    "VerifierStatus",
]

VerificationMethod = Literal["upstream", "archive", "continuous"]
UPSTREAM: VerificationMethod = "upstream"
ARCHIVE: VerificationMethod = "archive"
CONTINUOUS: VerificationMethod = "continuous"
"""Compares with TiDB at the checkpoint, some keys at a time.

The other methods compare with TiDB at the checkpoint in one run, or with snapshot and archive.
"""

_LAST_FOLDER, _RUNS_FOLDER, _LIVENESS_FILE = "verified/last", "verified/runs", "verified/look.json"
_NAME = re.compile(r"(\d{14})-[A-Za-z0-9_-]+\.json\Z")
_MAX_VERSIONS = 8
MAX_RUNS = 200


@dataclass(frozen=True, slots=True)
class TableVerified(JsonDocument):
    """A table at a verification.

    `name`: `schema.table` upstream; `ts` (TSO): the checkpoint at which both sides were read;
    `at_ms`: when that was done, Unix ms; `rows`, `bytes`: what was compared; `differences`: how
    many rows differ; `job`: its id. `problem`: why it could not be compared, "" if it was.
    """

    name: str
    ts: int
    at_ms: int
    rows: int
    bytes: int
    differences: int
    how: VerificationMethod
    job: str
    problem: str = ""

    @property
    def equal(self) -> bool:
        """Return whether it was compared and no row differs."""
        return not (self.differences or self.problem)


@dataclass(frozen=True, slots=True)
class VerifiedRun(JsonDocument):
    """A verification.

    `state`: as in `sluice.relay.jobs.STATES`; see `TableVerified` for the rest.
    """

    job: str
    ts: int
    at_ms: int
    seconds: float
    how: VerificationMethod
    tables: tuple[TableVerified, ...] = field(default=())
    state: str = "done"

    @property
    def differences(self) -> int:
        """Return how many rows differ in all tables."""
        return sum(table.differences for table in self.tables)


@dataclass(frozen=True, slots=True)
class VerifierStatus(JsonDocument):
    """The status of continuous verification.

    `looked_ms`: the last report of one of its processes (Unix ms); `stalled_ms`: since when there
    were rows to compare and none could be, 0 while some can; `rows`: compared to date, by all
    processes; `why`: the last error.
    """

    looked_ms: int = 0
    stalled_ms: int = 0
    rows: int = 0
    why: str = ""


class Verifications:
    """The verifications of a relay log. Every method raises RelayError, OSError."""

    def __init__(self, relay: RelayLog) -> None:
        self._storage = relay.place
        self._last = VersionedDocument(
            relay.place, _LAST_FOLDER, _DOCUMENT_FORMAT, kept=_MAX_VERSIONS
        )

    def note(self, run: VerifiedRun, there: Collection[str] | None = None) -> None:
        """Keep a run durably, and its tables' results unless later ones are known.

        A run over some rows doesn't hide what a run over all rows found. `there`: the full names of
        all tables that the upstream has; the results of others are removed.
        """
        path = f"{_RUNS_FOLDER}/{run.at_ms:014d}-{run.job}.json"
        if not _NAME.match(path.rpartition("/")[2]):
            raise RelayError(
                f"{run.job!r} can't be a job's id: letters, digits, - and _ can",
                hint="rename it",
            )
        self._storage.replace(path, run.to_bytes())
        new = {table.name: table for table in run.tables}

        def changed(last: dict[str, TableVerified]) -> dict[str, TableVerified]:
            known = last | {
                name: table for name, table in new.items() if _counts(table, last.get(name))
            }
            return {name: table for name, table in known.items() if there is None or name in there}

        self._last.change(changed)
        for name in self._run_names()[MAX_RUNS:]:
            self._storage.remove(f"{_RUNS_FOLDER}/{name}")

    def doubt(self, tables: Iterable[TableVerified]) -> None:
        """Keep durably why tables aren't known to be equal, until a later verification."""
        new = {table.name: table for table in tables}
        self._last.change(lambda last: last | new)

    def last(self) -> dict[str, TableVerified]:
        """Return each table's last verification, by full name."""
        return self._last.load()

    def save_status(self, look: VerifierStatus) -> None:
        """Durably, instead of the one before."""
        self._storage.replace(_LIVENESS_FILE, look.to_bytes())

    def look(self) -> VerifierStatus:
        """Return the newest status; the default if it can't be read."""
        try:
            return VerifierStatus.from_bytes(self._storage.read(_LIVENESS_FILE))
        except (FileNotFoundError, NewerFormatError, ValueError):
            return VerifierStatus()

    def runs(self, most: int) -> list[VerifiedRun]:
        """Return the newest `most` runs, newest first.

        They are for people: one that can't be read is passed over.
        """
        found = []
        for name in self._run_names()[:most]:
            with contextlib.suppress(FileNotFoundError, NewerFormatError, ValueError):
                found.append(VerifiedRun.from_bytes(self._storage.read(f"{_RUNS_FOLDER}/{name}")))
        return found

    def _run_names(self) -> list[str]:
        return sorted(filter(_NAME.match, self._storage.names(_RUNS_FOLDER)), reverse=True)


def _counts(new: TableVerified, before: TableVerified | None) -> bool:
    if before is None or new.differences:
        return True
    if new.how == CONTINUOUS and before.how != CONTINUOUS and not before.equal:
        return False
    return new.at_ms >= before.at_ms


def _parse(data: bytes) -> dict[str, TableVerified]:
    tables = from_bytes(list[TableVerified], data, "the list of verified tables")
    return {table.name: table for table in tables}


_DOCUMENT_FORMAT: DocumentFormat[dict[str, TableVerified]] = DocumentFormat(
    lambda last: to_bytes(list(last.values())), _parse, dict,
    hint="remove the file: the one before it counts then",
)  # fmt: skip
