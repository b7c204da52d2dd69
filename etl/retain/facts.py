"""From an archive to what retention and status reckon with: its chain, what DDL did, its bases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from etl.retain.contents import Contents
from etl.retain.known import KnownVolume
from etl.retain.needs import Facts
from etl.retain.origins import Snapshot, Turn
from relay import Window
from relay.archive import Archive
from upstream.ddl_actions import Action
from upstream.ddl_job import DdlJob

__all__ = ["facts_of", "turns_between", "turns_of_window"]

_BEGIN = frozenset(
    {
        Action.CREATE_TABLE,
        Action.CREATE_TABLES,
        Action.CREATE_VIEW,
        Action.CREATE_SEQUENCE,
        Action.TRUNCATE_TABLE,
    }
)
"""Jobs after which a table that wasn't there before is there, without rows."""


def facts_of(archive: Archive, contents: Contents, bases: Iterable[Snapshot], floor_ts: int = 0) -> Facts | None:
    """What there is behind the last hole and `floor_ts`, None if nothing is. Raises RelayCorruptError, OSError."""
    volumes = [volume for volume in contents.unbroken if volume.hi > floor_ts]
    if not volumes:
        return None
    turns = tuple(_turns(archive, contents, volumes[0].lo))
    return Facts(volumes[0].lo, volumes[-1].hi, tuple(bases), turns)


def _turns(archive: Archive, contents: Contents, after_ts: int) -> Iterator[Turn]:
    """What DDL did after a moment at which a volume begins."""
    version = -1
    for day in contents.days:
        volumes = [volume for volume in day.volumes if volume.lo >= after_ts]
        if not volumes:
            continue
        if day.turns is None:
            yield from turns_between(archive, volumes, version)
        else:
            yield from (turn for turn in day.turns if turn.ts > after_ts)
        version = volumes[-1].schema_version


def turns_between(archive: Archive, volumes: Iterable[KnownVolume], version: int) -> Iterator[Turn]:
    """What DDL did in volumes, before which TiDB's schema version was `version`. Only indexes of those are read that
    leave another version than the one before. Raises RelayCorruptError, OSError.
    """
    log = archive.log
    for volume in volumes:
        if volume.schema_version != version:
            for window in log.windows(volume.lo, volume.hi):
                yield from turns_of_window(window)
        version = volume.schema_version


def turns_of_window(window: Window) -> Iterator[Turn]:
    """What a window's DDL did to tables."""
    there = {int(table_id) for table_id, table in window.tables.items() if table}
    for document in window.ddls:
        yield from _turns_of(document, there)


def _turns_of(document: Mapping[str, Any], there: set[int]) -> Iterator[Turn]:
    """What one DDL did; `there` are the tables that are known to exist before, and then afterwards."""
    ddl = DdlJob.from_json(document)
    tables = ddl.effect.tables
    gone = tuple(table_id for table_id in tables if tables[table_id] is None)
    before = frozenset(there)
    moved = tuple(table_id for table_id in tables if table_id in before)
    for table_id, table in tables.items():
        if table is None:
            there.discard(table_id)
            continue
        there.add(table_id)
        name = table.full_name
        if ddl.type == Action.EXCHANGE_PARTITION:
            yield Turn(ddl.commit_ts, table_id, name, takes=moved or (table_id,))
        elif table_id in before:
            yield Turn(ddl.commit_ts, table_id, name)
        elif ddl.type in _BEGIN:
            yield Turn(ddl.commit_ts, table_id, name, begins=True)
        else:  # recovered, or under another id than before: (re)partitioned
            yield Turn(ddl.commit_ts, table_id, name, takes=gone or (table_id,))
    yield from (Turn(ddl.commit_ts, table_id, None) for table_id in gone)
