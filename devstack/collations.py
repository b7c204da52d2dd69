"""Find out whether a recorded cluster has new collations.

A row of its `mysql.tidb` would show it; of a recording, which holds TiDB's meta keys and binlogs
only, the inserted rows of tables with a clustered text key do
(`sluice.tidb.old_collations.shown_by_row`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sluice.devstack.recording import Recording, RecordingError
from sluice.tidb import pb
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.old_collations import restored_columns, shown_by_row
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import hash_prefix

_JOBS = hash_prefix("DDLJobHistory")
_COMMON_HANDLE = re.compile(rb'"is_common_handle":\s*true')


def recorded_new_collations(recording: Recording) -> bool:
    """Return what the rows show, else what recording.json has, else True, as TiDB is by default.

    Raises RecordingError if the two contradict each other. Reads the stream up to the first row
    that shows it, and nothing of it where no table can.
    """
    payloads = (record.payload for record in recording.records() if record.tp == PREWRITE)
    shown = shown_new_collations(recording.meta_keys(), payloads)
    recorded = recording.new_collations
    if shown is not None and recorded is not None and shown != recorded:
        raise RecordingError(
            f"{recording.directory}/recording.json has new_collation_enabled"
            f" {json.dumps(recorded)}, the rows of clustered keys in binlogs.bin.gz show"
            f" {json.dumps(shown)}; take the key out"
        )
    return next((answer for answer in (shown, recorded) if answer is not None), True)


def shown_new_collations(
    meta: Iterable[tuple[bytes, bytes]], payloads: Iterable[bytes]
) -> bool | None:
    """Return what the first inserted row that shows it shows; None without one.

    `meta`: keys and values as in TiKV, `payloads`: Binlog messages.
    """
    clustered = {table.id: table for table in _clustered(meta) if restored_columns(table)}
    if not clustered:
        return None
    rows = (
        (clustered[m.table_id], row)
        for payload in payloads
        for m in _mutations(payload)
        if m.table_id in clustered
        for row in m.inserted_rows
    )
    return next(
        (shown for shown in (_shown(table, row) for table, row in rows) if shown is not None), None
    )


def _shown(table: Table, row: bytes) -> bool | None:
    try:
        return shown_by_row(table, row)
    except CodecError:  # broken on purpose, maybe: landing will report it
        return None


def _mutations(payload: bytes) -> Iterable[Any]:
    message = pb.binlog.Binlog.FromString(payload)
    return (
        pb.binlog.PrewriteValue.FromString(message.prewrite_value).mutations
        if message.tp == PREWRITE and message.prewrite_value
        else ()
    )


def _clustered(meta: Iterable[tuple[bytes, bytes]]) -> Iterator[Table]:
    """Yield tables whose clustered key isn't one integer, as DDL jobs made them.

    Few jobs of thousands are worth parsing.
    """
    for key, value in meta:
        if key.startswith(_JOBS) and _COMMON_HANDLE.search(value):
            binlog = json.loads(value).get("binlog") or {}
            for info in (binlog.get("TableInfo"), *(binlog.get("MultipleTableInfos") or ())):
                if info and info.get("is_common_handle"):
                    yield Table.from_tidb(info, 0, "")
