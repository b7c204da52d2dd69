"""Pick the tables and the moment of a restore drill."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.etl.history.retain import archive_status, tables_restorable_at
from sluice.etl.restore.errors import DrillError
from sluice.etl.settings import Settings
from sluice.relay.archive import Archive, ArchiveSnapshot, SnapshotStore
from sluice.relay.json_codec import JsonDocument
from sluice.tidb.table_name import TableName

__all__ = ["INTO", "TableChoice", "pick_tables"]

INTO = "sluice_drill_{schema}"
_MAX_NAME_CHARS = 64
_MAX_DRAWS = 20
"""Moments at which there may be no table that the settings want."""


@dataclass(frozen=True, slots=True)
class TableChoice(JsonDocument):
    """The tables, by their names upstream at `ts` (TSO)."""

    ts: int
    tables: tuple[str, ...]


def pick_tables(
    settings: Settings, ts: int | None, count: int, max_bytes: int, dice: random.Random
) -> TableChoice:
    """Pick up to `count` random tables to restore.

    They hold at most about `max_bytes` in memory together, but for the first one. They are picked
    as of `ts` (TSO), or of any moment that can be restored. Raises DrillError if there is none.
    """
    for moment in _moments(settings, dice) if ts is None else [ts]:
        if sizes := _sizes(settings, moment):
            break
    else:
        raise DrillError(
            f"no table that the settings want can be restored{'' if ts is None else f' as of {ts}'}"
        )
    names = sorted(sizes)
    dice.shuffle(names)
    return TableChoice(
        moment, tuple(sorted(itertools.islice(_fitting(names, sizes, max_bytes), count)))
    )


def _moments(settings: Settings, dice: random.Random) -> Iterator[int]:
    """Yield some moments at which something can be restored. Raises DrillError if there is none."""
    status = archive_status(settings)
    begin = max(status.whole_from_ts, min((table.from_ts for table in status.tables), default=0))
    if not begin:
        raise DrillError(f"{status.url}: nothing can be restored yet")
    yield from (dice.randint(begin, status.hi) for _ in range(_MAX_DRAWS))


def _fitting(names: Sequence[str], sizes: Mapping[str, int], max_bytes: int) -> Iterator[str]:
    taken = 0
    for number, name in enumerate(names):
        if number == 0 or taken + sizes[name] <= max_bytes:
            taken += sizes[name]
            yield name


def _sizes(settings: Settings, ts: int) -> dict[str, int]:
    """Return the tables that can be restored as of a moment, with their estimated bytes.

    They are restored from the nearest snapshot.
    """
    snapshot = SnapshotStore(Archive.open(settings.archive_url).storage).latest(ts)
    rows = _by_id(snapshot) if snapshot is not None else {}
    restorable = tables_restorable_at(settings, snapshot, ts)
    return {
        name: rows.get(table_id, 0)
        for table_id, name in restorable.items()
        if _fits(name) and (snapshot is None or table_id in rows)
    }


def _by_id(snapshot: ArchiveSnapshot) -> dict[int, int]:
    """Return the bytes of tables with rows, by id: views and sequences aren't tried."""
    return {
        int(table.table["id"]): table.row_bytes
        for table in snapshot.tables
        if not table.table.get("is_view") and not table.table.get("is_sequence")
    }


def _fits(name: str) -> bool:
    """Return whether a table can be named, and its database's name has room for more letters."""
    return len(INTO.replace("{schema}", TableName.parse(name).schema)) <= _MAX_NAME_CHARS
