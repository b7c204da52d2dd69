"""Volumes made without Spark, and a relay log that grows window by window."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import google_crc32c

from sluice.etl.history.archive.verifying import segment_problems
from sluice.etl.history.archive.worker import BuildSegments, build_segment
from sluice.etl.settings import Settings, parse_settings
from sluice.relay import Part, RelayLog, WindowRecord
from sluice.relay.archive import Archive, ArchiveLog, ArchiveSegment
from sluice.relay.storage import Storage


class LocalJobs:
    """Makes and reads segments in this process, as Spark's workers would."""

    def __init__(self, settings: Settings, source_url: str = "") -> None:
        self._work = BuildSegments.from_settings(settings, source_url or settings.relay.url)
        self.made = 0

    def connect(self) -> None: ...

    def run(self, task: dict[str, Any]) -> Any:
        if "segment" in task:
            return segment_problems(
                ArchiveLog.open(self._work.archive_url),
                ArchiveSegment.from_json(json.loads(task["segment"])),
            )
        self.made += 1
        return json.loads(
            json.dumps(build_segment(self._work, task, f"{task['token']}.{self.made}"))
        )

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


def settings_of(relay_url: str, **archive: Any) -> Settings:
    """A pipeline with this relay log."""
    return parse_settings(
        {
            "upstream": {"pd-urls": "http://127.0.0.1:1"},
            "relay": {"url": relay_url},
            "downstream": {"host": "db"},
            "archive": archive,
        }
    )


class Growing:
    """A relay log that gets the windows of another one, as they would be landed."""

    def __init__(self, source: RelayLog, url: str) -> None:
        self._source = source
        self._windows = source.windows(0)
        self.relay = RelayLog.open(url)

    def land(self, count: int = 1) -> list[WindowRecord]:
        """So many more, fewer if there are no more."""
        landed = list(itertools.islice(self._windows, count))
        for window in landed:
            for part in window.parts:
                with self.relay.storage.new_file(part.path) as file:
                    file.write(self._content(part))
            self.relay.commit(window)
        return landed

    def _content(self, part: Part) -> bytes:
        """Of a part's file; on an S3 server with faults it may be damaged on the way here."""
        read = (self._source.storage.read(part.path) for _ in range(5))
        return next(data for data in read if google_crc32c.value(data) == part.crc32c)


def differences(relay: RelayLog, archive: Archive) -> list[str]:
    """What the archive says otherwise than the relay log: changes, DDL, transactions, the range,
    the chain.
    """
    landed = list(relay.windows(0))
    archived = list(archive.log.windows(landed[0].lo))
    found = []
    if not relay.read(landed).equals(archive.log.read(archived)):
        found.append("changes")
    if [ddl for window in landed for ddl in window.ddls] != [
        ddl for window in archived for ddl in window.ddls
    ]:
        found.append("DDL")
    if sum(window.transactions for window in landed) != sum(
        window.transactions for window in archived
    ):
        found.append("transactions")
    if (landed[0].lo, landed[-1].hi) != (archived[0].lo, archived[-1].hi):
        found.append("the range")
    for window in landed:
        there = _tables_at(next(one for one in archived if one.lo <= window.lo < one.hi), window.lo)
        if any(there.get(table_id) != table for table_id, table in window.tables.items()):
            found.append("tables")
    if any(after.lo != before.hi for before, after in itertools.pairwise(archived)):
        found.append("the chain")
    return found


def _tables_at(window: WindowRecord, ts: int) -> dict[str, Any]:
    """The documents of a window's tables once everything through `ts` (TSO) is committed, by id."""
    tables = dict(window.tables)
    for ddl in window.ddls:
        if ddl["commit_ts"] <= ts:
            tables |= ddl["effect"]["tables"]
    return tables


def log_files(archive: Archive, folder: Path) -> tuple[set[str], set[str]]:
    """The files that segments have, and those that are there, below log/ and lake/, hidden ones
    too.
    """
    named = {file.path for segment in archive.segments() for file in segment.files}
    there = {
        str(path.relative_to(folder))
        for name in ("log", "lake")
        for path in (folder / name).rglob("*")
        if path.is_file()
    }
    return named, there.union(*(_files(archive.storage, name) for name in ("log", "lake")))


def _files(storage: Storage, folder: str) -> set[str]:
    """Paths of all files below a folder, wherever that is."""
    here = storage.sizes(folder)
    below = (
        _files(storage, f"{folder}/{name}") for name in storage.names(folder) if name not in here
    )
    return {f"{folder}/{name}" for name in here}.union(*below)
