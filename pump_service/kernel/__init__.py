"""Process every binlog of a batch at once.

Compiled from `compiled.c` if possible, else in Python.

Both give the same answers (tests/pump_service/kernel). `sluice.tidb.build_native` compiles it;
`SLUICE_KERNEL=plain` forces Python's.
"""

from __future__ import annotations

from sluice.pump_service.kernel import plain
from sluice.tidb.native import is_usable

EDITION = 8
"""Edition of `compiled.c`; a build of another edition isn't used."""

IS_COMPILED = is_usable(__name__, EDITION, in_any_byte_order=True)
if IS_COMPILED:
    from sluice.pump_service.kernel._compiled import (
        calls,
        fields,
        framed,
        merged,
        no_ended,
        note,
        pull_message,
        put_entries,
        replies,
    )
else:
    calls, replies, framed, put_entries = (
        plain.calls,
        plain.replies,
        plain.framed,
        plain.put_entries,
    )
    merged, pull_message, fields, no_ended, note = (
        plain.merged,
        plain.pull_message,
        plain.fields,
        plain.no_ended,
        plain.note,
    )

framed_parts = plain.framed_parts

__all__ = [
    "IS_COMPILED",
    "calls",
    "fields",
    "framed",
    "framed_parts",
    "merged",
    "no_ended",
    "note",
    "pull_message",
    "put_entries",
    "replies",
]
