"""Snapshots of the upstream's whole schema as of a version, beside the windows.

With them landing need not read all DDL there ever was each time it begins.

    <url>/schema/<schema version, 20 digits>.json.zst

They hold nothing that TiDB couldn't send again. The two newest stay, as the newest may be ahead of
where landing goes on after an archive or a copy was restored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.format_version import FORMAT, NewerFormatError
from sluice.relay.storage import Storage

__all__ = ["FOLDER", "SchemaSnapshots", "parse_schema_snapshot"]

log = logging.getLogger("sluice")

FOLDER = "schema"
_SUFFIX = ".json.zst"
_MAX_SNAPSHOTS = 2


def parse_schema_snapshot(data: bytes) -> dict[str, Any]:
    """Parse a snapshot's file. Raises NewerFormatError, ValueError, OSError."""
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as packed:
        return decode_checksummed(packed.read(), FORMAT)


class SchemaSnapshots:
    """The snapshots of one relay log. Their writer defines what a document holds."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def newest(self, through: int) -> dict[str, Any] | None:
        """Return the snapshot of the highest schema version through `through`.

        None if none can be read; those that can't are logged. Raises OSError.
        """
        for version in reversed([each for each in self._versions() if each <= through]):
            path = _path(version)
            try:
                data = self._storage.read(path)
            except FileNotFoundError:  # another process has written two newer ones
                continue
            try:
                return parse_schema_snapshot(data)
            except (ValueError, OSError, NewerFormatError) as error:
                log.warning("%s/%s is passed over: %s", self._storage.url, path, error)
        return None

    def keep(self, version: int, document: Mapping[str, Any]) -> None:
        """Write one, durable on return, and remove those before the last. Raises OSError."""
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as packed:
            packed.write(encode_checksummed({**document, "format": FORMAT}))
        self._storage.replace(_path(version), sink.getvalue().to_pybytes())
        for old in [each for each in self._versions() if each < version][: 1 - _MAX_SNAPSHOTS]:
            self._storage.remove(_path(old))

    def _versions(self) -> list[int]:
        names = [
            name.removesuffix(_SUFFIX)
            for name in self._storage.names(FOLDER)
            if name.endswith(_SUFFIX)
        ]
        return sorted(int(name) for name in names if name.isdecimal())


def _path(version: int) -> str:
    return f"{FOLDER}/{version:020d}{_SUFFIX}"
