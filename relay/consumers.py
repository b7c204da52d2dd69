"""The consumers of the relay log and their positions.

Windows that one of them has not passed stay.

    <url>/consumers/<name>.json    {"checkpoint_ts": TSO, "what": text, "noted_ms": Unix time}

A consumer that applies windows records its position from time to time, and is removed when it is
done. A Spark stream does so under the name that its user gave it. One that is given up keeps
windows until its file is removed. The time to keep is counted back from the consumers' positions in
the upstream's time, not by this machine's clock.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from typing import Any

from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.format_version import parse_json
from sluice.relay.log import RelayLog

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
ARCHIVE_CONSUMER = "archive"
"""The archive's name among the consumers; its position is what it has archived."""


def consumer_name(downstream: str) -> str:
    """Return the consumer name of a pipeline that applies to `downstream`."""
    return f"apply-{zlib.crc32(downstream.encode()):08x}"


_STREAM_PREFIX = "spark-"


def stream_consumer(name: str, table: str) -> str:
    """Return the consumer name of a Spark stream of a table's changes.

    Raises RelayError for a `name` that no file can have.
    """
    if not _NAME.match(name):
        raise RelayError(
            f"{name!r} can't be the name of a consumer: letters, digits, - and _ can",
            hint="rename it",
        )
    return f"{_STREAM_PREFIX}{name}-{zlib.crc32(table.encode()):08x}"


def applies(name: str) -> bool:
    """Return whether a consumer writes windows downstream: a pipeline, or a job of one."""
    return name != ARCHIVE_CONSUMER and not name.startswith(_STREAM_PREFIX)


class Consumers:
    """The consumers of the relay log and their positions."""

    def __init__(self, relay: RelayLog) -> None:
        self._relay = relay
        self._storage = relay.storage

    def note(self, name: str, checkpoint_ts: int, what: str) -> None:
        """Record that `name` (letters, digits, - and _) has applied all through `checkpoint_ts`.

        Raises OSError.
        """
        entry = {
            "checkpoint_ts": checkpoint_ts,
            "what": what,
            "noted_ms": time.time_ns() // 1_000_000,
        }
        self._storage.replace(f"consumers/{name}.json", json.dumps(entry).encode() + b"\n")

    def forget(self, name: str) -> None:
        """Remove `name`, which needs no windows any more. Raises OSError."""
        self._storage.remove(f"consumers/{name}.json")

    def positions(self) -> dict[str, int]:
        """checkpoint_ts by name. Raises RelayCorruptError, OSError."""
        found: dict[str, int] = {}
        for name in self._storage.names("consumers"):
            path = f"consumers/{name}"
            try:
                entry: Any = parse_json(self._storage.read(path), "how far a consumer is")
                found[name.removesuffix(".json")] = int(entry["checkpoint_ts"])
            except (ValueError, KeyError, TypeError) as error:
                raise RelayCorruptError(
                    f"{self._relay.url}/{path}: {error!r}: nothing is removed while it can't be"
                    " read; remove it if that consumer is gone"
                ) from None
        return found
