"""The relay log: immutable parts with row changes and the manifest of landed windows.

Everything the downstream ever gets is written here first. See docs/reference/files-on-disk.md.
What reads and writes row changes loads on first use: it needs Arrow, and reading the manifest
doesn't.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sluice.relay.aligned_chunks import (
    AlignedChunk,
    AlignedChunkExistsError,
    AlignedChunks,
    ChunkCancelled,
    ChunkReady,
    LoadFile,
    PendingChunks,
    TableRepair,
)
from sluice.relay.checksummed import decode_text, encode_text
from sluice.relay.control import Control
from sluice.relay.errors import (
    ClaimLostError,
    RelayCorruptError,
    RelayError,
    RelayGapError,
    WindowConflictError,
)
from sluice.relay.failures import Failure
from sluice.relay.json_cache import to_text
from sluice.relay.log import RelayLog, RoleClaim
from sluice.relay.overrides import (
    REPLACE,
    SKIP,
    Override,
    OverrideExistsError,
    Overrides,
    is_named,
    remove_command,
)
from sluice.relay.ownership import Ownership, StopMark
from sluice.relay.part_descriptor import DELETE, INSERT, UPDATE, Part
from sluice.relay.record_codec import RecordEncoder, read_records
from sluice.relay.url import refuse_credentials
from sluice.relay.window import WindowRecord, hour_of
from sluice.relay.window_log import WindowLog, in_portions

if TYPE_CHECKING:
    from sluice.relay.part import CopiesDifferError, iter_parts, merge, read_parts
    from sluice.relay.row_groups import PART_SCHEMA

__all__ = [
    "DELETE",
    "INSERT",
    "PART_SCHEMA",
    "REPLACE",
    "SKIP",
    "UPDATE",
    "AlignedChunk",
    "AlignedChunkExistsError",
    "AlignedChunks",
    "ChunkCancelled",
    "ChunkReady",
    "ClaimLostError",
    "Control",
    "CopiesDifferError",
    "Failure",
    "LoadFile",
    "Override",
    "OverrideExistsError",
    "Overrides",
    "Ownership",
    "Part",
    "PendingChunks",
    "RecordEncoder",
    "RelayCorruptError",
    "RelayError",
    "RelayGapError",
    "RelayLog",
    "RoleClaim",
    "StopMark",
    "TableRepair",
    "WindowConflictError",
    "WindowLog",
    "WindowRecord",
    "decode_text",
    "encode_text",
    "hour_of",
    "in_portions",
    "is_named",
    "iter_parts",
    "merge",
    "read_parts",
    "read_records",
    "refuse_credentials",
    "remove_command",
    "to_text",
]

_HOME = {
    "CopiesDifferError": "part",
    "iter_parts": "part",
    "merge": "part",
    "read_parts": "part",
    "PART_SCHEMA": "row_groups",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sluice.relay' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
