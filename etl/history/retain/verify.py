"""Verify that the archive has what the relay log has: read both, and compare."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.history.errors import NotArchivedError
from sluice.relay import RelayLog, WindowRecord
from sluice.relay.archive import Archive
from sluice.tidb import tso

__all__ = ["verify_window"]

_COMPARED_MEMBERS = ("truncated_tables", "moved", "relaxed")


def verify_window(relay: RelayLog, archive: Archive, archived: WindowRecord) -> int:
    """Compare an archived window with the landed ones it was made from, and count the changes.

    Landed windows count as far as the relay log still has them: every change, DDL and table
    definition of them must be there. Raises NotArchivedError, RelayCorruptError, RelayGapError.
    """
    landed = list(relay.windows(archived.lo, archived.hi))
    if not landed:
        return 0
    if landed[-1].hi != archived.hi or landed[0].lo < archived.lo:
        raise _difference_error(relay, archive, archived, "begins or ends elsewhere")
    _same_schema(relay, archive, archived, landed)
    return _same_changes(relay, archive, archived, landed)


def _same_schema(
    relay: RelayLog, archive: Archive, archived: WindowRecord, landed: Sequence[WindowRecord]
) -> None:
    since = landed[0].lo
    ddls = [ddl for window in landed for ddl in window.ddls]
    skipped = [entry for window in landed for entry in window.skipped]
    if [ddl for ddl in archived.ddls if ddl["commit_ts"] > since] != ddls:
        raise _difference_error(relay, archive, archived, "has other DDL")
    if [entry for entry in archived.skipped if entry["commit_ts"] > since] != skipped:
        raise _difference_error(relay, archive, archived, "names other transactions as left out")
    if archived.schema_version != landed[-1].schema_version:
        raise _difference_error(relay, archive, archived, "has another schema version")
    tables = dict(archived.tables)
    for ddl in archived.ddls:
        if ddl["commit_ts"] <= since:
            tables |= ddl["effect"]["tables"]
    for window in landed:
        if any(tables.get(table_id) != table for table_id, table in window.tables.items()):
            raise _difference_error(relay, archive, archived, "describes tables in another way")
        if any(getattr(window, name) != getattr(archived, name) for name in _COMPARED_MEMBERS):
            raise _difference_error(relay, archive, archived, "has other notes on tables")
        for ddl in window.ddls:
            tables |= ddl["effect"]["tables"]


def _same_changes(
    relay: RelayLog, archive: Archive, archived: WindowRecord, landed: Sequence[WindowRecord]
) -> int:
    mine, theirs = archive.log.read([archived]), relay.read(landed)
    if landed[0].lo > archived.lo:
        mine = mine.filter(pc.greater(mine["commit_ts"], pa.scalar(landed[0].lo, pa.int64())))
    if not mine.equals(theirs):
        raise _difference_error(
            relay,
            archive,
            archived,
            f"has other changes ({mine.num_rows:,}, not {theirs.num_rows:,} rows)",
        )
    return int(theirs.num_rows)


def _difference_error(
    relay: RelayLog, archive: Archive, archived: WindowRecord, how: str
) -> NotArchivedError:
    return NotArchivedError(
        f"{archive.url}: the window ({archived.lo}, {archived.hi}], from"
        f" {tso.time_text(archived.lo)} on, {how} than {relay.url} has there; nothing of it is"
        " removed from the relay log"
    )
