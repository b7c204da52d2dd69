"""Choose which of several processes replicates a pipeline as a service; the others stand by.

The holder renews the lease by writing the document again. A process that stands by takes it over
once the document hasn't changed for `LEASE_TIMEOUT_S` by its own clock, so clocks needn't agree. A
process that follows the holder in its place, as the next attempt of a task does, has the holder's
name and takes the lease over at once. No correctness rests on this: the relay log's claim, the
downstream's lock and its checkpoint row keep two processes apart. It keeps them from taking over
from each other all the time.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sluice.relay.errors import ClaimLostError
from sluice.relay.json_codec import OMIT_DEFAULT, JsonDocument, from_bytes, to_bytes
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["LEASE_TIMEOUT_S", "RENEW_INTERVAL_S", "LeaseEntry", "ServiceLease"]

LEASE_TIMEOUT_S = 15.0
"""With the start of a worker process, less than the 40 s after which a task would be replaced."""
RENEW_INTERVAL_S = 3.0
"""Four attempts before the lease is lost."""
_FOLDER = "service-lease"
_MAX_VERSIONS = 4


@dataclass(frozen=True, slots=True)
class LeaseEntry(JsonDocument):
    """Who replicates, "" for nobody, and since when (Unix ms). Each renewal has another `beat`."""

    JSON_FIELDS: ClassVar[Mapping[str, Any]] = {"name": OMIT_DEFAULT}
    holder: str = ""
    host: str = ""
    pid: int = 0
    since_ms: int = 0
    beat: str = field(default_factory=lambda: secrets.token_hex(6))
    name: str = ""
    """The holder's place, which one process has at a time; "" if nothing follows in it."""


class ServiceLease:
    """The lease of one pipeline, as one process sees it. Every method raises relay errors, OSError.

    Not for several threads.
    """

    def __init__(self, storage: Storage, name: str = "") -> None:
        """Open it; `storage` is the pipeline's own, `name` the place of this process."""
        hint = "remove the folder: the process that replicates makes it again"
        form: DocumentFormat[LeaseEntry] = DocumentFormat(to_bytes, _parse, _nobody, hint)
        self._file: VersionedDocument[LeaseEntry] = VersionedDocument(
            storage, _FOLDER, form, _MAX_VERSIONS
        )
        self._token = secrets.token_hex(6)
        self._name = name
        self._may_follow = bool(name)
        """Only at first: two of a name would take turns, were one that lost it to do so, too."""
        self._seen: LeaseEntry | None = None
        self._since = 0.0

    def entry(self) -> LeaseEntry:
        """Return the newest entry."""
        return self._file.load()

    def unchanged_s(self, entry: LeaseEntry) -> float:
        """Return for how many seconds this process has seen the lease as it is now."""
        now = time.monotonic()
        if self._seen != entry:
            self._seen, self._since = entry, now
        return now - self._since

    def try_acquire(self) -> bool:
        """Take the lease if nobody holds it or its holder has stopped renewing it.

        The first call also takes it from a holder of the same name.
        """
        seen = self.entry()
        follows = self._may_follow and seen.name == self._name
        self._may_follow = False
        if seen.holder and not follows and self.unchanged_s(seen) < LEASE_TIMEOUT_S:
            return False
        mine = LeaseEntry(
            self._token, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000,
            name=self._name,
        )  # fmt: skip
        return self._file.change(lambda newest: mine if newest == seen else newest) == mine

    def renew(self) -> None:
        """Renew it. Raises ClaimLostError if another process holds it."""

        def renewed(newest: LeaseEntry) -> LeaseEntry:
            self._check(newest)
            return replace(newest, beat=secrets.token_hex(6))

        self._file.change(renewed)

    def release(self) -> None:
        """Let another process take it at once. Raises ClaimLostError as `renew`."""

        def released(newest: LeaseEntry) -> LeaseEntry:
            self._check(newest)
            return LeaseEntry()

        self._file.change(released)

    def _check(self, newest: LeaseEntry) -> None:
        if newest.holder != self._token:
            by = f"process {newest.pid} on {newest.host}" if newest.holder else "nobody"
            raise ClaimLostError(f"the lease of the service is held by {by}")


def _nobody() -> LeaseEntry:
    return LeaseEntry(beat="")


def _parse(data: bytes) -> LeaseEntry:
    return from_bytes(LeaseEntry, data, "the service's lease")
