"""Whatever happens, in whatever order: every moment of the promised range that could be restored
still can be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import past_model as model
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from past_model import HOUR, Past, Reader, restorable

from sluice.etl.history.retain import retain
from sluice.etl.settings import Settings, parse_settings
from sluice.relay import RelayLog
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    Pin,
    Pins,
    RemovedError,
    SnapshotFile,
    SnapshotStore,
    SnapshotTable,
    snapshot_id,
    write_log,
)
from sluice.relay.consumers import ARCHIVE_CONSUMER, Consumers
from sluice.relay.storage import LocalStorage
from sluice.tidb import tso


class KilledError(BaseException):
    """As kill -9, between two changes to the disk."""


@contextmanager
def killed_after(changes: int | None) -> Iterator[None]:
    """Nothing is written or removed any more after so many changes to the disk.

    None: never killed.
    """
    with pytest.MonkeyPatch.context() as patch:
        left = [changes if changes is not None else 1 << 30]

        def dying(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                if left[0] <= 0:
                    raise KilledError
                left[0] -= 1
                return real(*args, **more)

            return call

        for name in ("create", "replace", "remove", "new_file"):
            patch.setattr(LocalStorage, name, dying(getattr(LocalStorage, name)))
        with suppress(KilledError):
            yield


class World:
    """A relay log, an archive, and everybody who has to do with them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.past = Past(self.random)
        self.relay = RelayLog.open(f"file://{root}/relay")
        self.archive = Archive.open(f"file://{root}/relay/archive")
        self.snapshots, self.holds = SnapshotStore(self.archive.storage), Pins(self.archive.storage)
        self.consumers = Consumers(self.relay)
        self.had: set[tuple[int, str]] = set()
        self.readers: dict[str, tuple[Pin, str]] = {}
        self.removed = 0

    def settings(self) -> Settings:
        r = self.random
        archive = {
            "keep": r.choice(["", "8h", "20h", "40h"]),
            "snapshots-keep": r.choice(["", "3h", "9h"]),
        }
        document = {
            "upstream": {"pd-urls": "http://127.0.0.1:1"},
            "relay": {"url": self.relay.url, "keep": r.choice(["", "1h", "5h"])},
            "downstream": {"host": "db"},
            "archive": archive,
        }
        return parse_settings(document)

    # What happens

    def land(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            self.past.land(self.relay, quiet=self.random.random() < 0.2)

    def apply(self) -> None:
        behind = self.random.choice([0, 0, 2 * HOUR, 10 * HOUR])
        for name in self.random.sample(["apply-1", "apply-2"], self.random.randrange(1, 3)):
            there = self.consumers.positions().get(name, 0)
            self.consumers.note(name, max(there, self.past.now - behind), "db")

    def give_a_consumer_up(self) -> None:
        self.consumers.forget("apply-2")

    def archive_some(self) -> None:
        last = self.archive.last()
        first = self.relay.first()
        assert first is not None
        begin = last.hi if last is not None else first.lo
        if last is None:
            self.consumers.note(ARCHIVE_CONSUMER, begin, "archive")
        windows = list(self.relay.windows(begin))[: self.random.randrange(1, 9)]
        if windows:
            written = write_log(self.relay.storage, self.archive.storage, windows, self._token())
            self.archive.append(written.segment())
            self.consumers.note(ARCHIVE_CONSUMER, windows[-1].hi, "archive")

    def compact(self) -> None:
        days = [
            day
            for day in self.archive.catalogue.days()
            if len(self.archive.catalogue.load(day).segments) > 1
        ]
        if not days:
            return
        day = self.random.choice(days)
        token = self._token()
        old = self.archive.begin_compaction(day, token).segments[: self.random.randrange(2, 5)]
        windows = list(self.archive.log.windows(old[0].lo, old[-1].hi))
        self.archive.replace(
            old, write_log(self.archive.storage, self.archive.storage, windows, token).segment()
        )

    def make_snapshot(self) -> None:
        """Make one as of a past moment, of all tables or some, sometimes never finished.

        It may refer to older snapshots.
        """
        ts, states = self.random.choice(self.past.history[-40:])
        ids = self._ids_at(ts)
        if self.random.random() < 0.2:
            ids = {i: name for i, name in ids.items() if self.random.random() < 0.5}
        name = snapshot_id(ts, self._token())
        older = (
            [snapshot for snapshot in self.snapshots.all() if snapshot.ts <= ts][-1:]
            if self.random.random() < 0.8
            else []
        )
        refers_to = tuple(
            {one.id for one in older} | {folder for one in older for folder in one.refers_to}
        )
        allowed = self.snapshots.begin(name, PendingSnapshot("", refers_to))
        tables = tuple(
            self._snapshot_table(name, i, full, states[full], older, allowed)
            for i, full in ids.items()
        )
        if self.random.random() < 0.15:
            if self.random.random() < 0.5:
                self.snapshots.forget(name)
            return
        self.snapshots.publish(ArchiveSnapshot(name, ts, 1, 1, 0, "a test", (), tables))

    def _snapshot_table(
        self,
        snapshot: str,
        table_id: int,
        full: str,
        rows: model.Rows,
        older: list[ArchiveSnapshot],
        allowed: list[str],
    ) -> SnapshotTable:
        schema, _, name = full.partition(".")
        definition = model.definition(table_id, name)
        data = pa.table({"key": list(rows), "value": list(rows.values())}, schema=model.BASE_SCHEMA)
        for one in older:
            there = one.table(schema, name)
            if one.id in allowed and there is not None and there.files:
                stored = pq.read_table(pa.BufferReader(self.snapshots.content(there.files[0])))
                if stored.sort_by("key").equals(data.sort_by("key")):
                    return SnapshotTable(schema, name, definition, there.files)
        out = pa.BufferOutputStream()
        pq.write_table(data, out)
        content = out.getvalue().to_pybytes()
        path = f"snapshots/{snapshot}/{table_id}/0.parquet"
        with self.archive.storage.new_file(path) as sink:
            sink.write(content)
        crc = model.crc32c(content)
        return SnapshotTable(
            schema,
            name,
            definition,
            (SnapshotFile(path, len(rows), len(content), crc, len(content)),),
        )

    def _ids_at(self, ts: int) -> dict[int, str]:
        return {i: f"s.{name}" for i, name in self.past.ids_at(ts).items()}

    def forget_a_snapshot(self) -> None:
        """Forget one as an operator may: what only that snapshot gave is promised no longer."""
        there = [snapshot.id for snapshot in self.snapshots.all()]
        held = {
            hold_snapshot for hold, _ in self.readers.values() for hold_snapshot in hold.snapshots
        }
        if there and (name := self.random.choice(there)) not in held:
            self.snapshots.forget(name)
            self.had = self._restorable()

    def begin_to_read(self) -> None:
        there = self.snapshots.all()
        first, last = self.archive.first(), self.archive.last()
        if not there or first is None or last is None:
            return
        snapshot = self.random.choice(there)
        if snapshot.ts < first.lo:
            return
        name = f"reader-{len(self.readers)}-{self._token()}"
        hold = Pin("a test", snapshot.ts, (snapshot.id,), "", last.hi)
        with suppress(RemovedError):
            self.holds.note(name, hold)
            self.readers[name] = (hold, snapshot.id)

    def read_on(self) -> None:
        """Who holds a snapshot and the chain behind it reads both."""
        if not self.readers:
            return
        name = self.random.choice(sorted(self.readers))
        hold, snapshot = self.readers.pop(name)
        reader = Reader(self.archive, self.relay, since=hold.from_ts)
        assert [start.ts for start in reader.starts(snapshot)] == [hold.from_ts], (
            "the snapshot that is held is gone"
        )
        assert reader.lo == hold.from_ts
        self.holds.forget(name)

    def retain(self) -> None:
        self.had |= self._restorable()
        settings, killed = (
            self.settings(),
            self.random.choice([None, None, self.random.randrange(30)]),
        )
        positions = self.consumers.positions()
        clock = self.random.choice(
            [None, None, self.past.now - 30 * HOUR, self.past.now + 10**6 * HOUR]
        )
        with killed_after(killed), pytest.MonkeyPatch.context() as patch:
            if clock is not None:
                patch.setattr("sluice.tidb.tso.wall_clock", lambda: clock)
            self.removed += _anything(retain(settings))
        self._relay_has(positions, settings.relay.keep_ms)
        end = self.archive.last()
        promised = (
            end.hi - tso.span(settings.archive.keep_ms)
            if end is not None and settings.archive.keep_ms
            else 0
        )
        self._had_before(promised)

    # What must be so

    def _restorable(self) -> set[tuple[int, str]]:
        return restorable(Reader(self.archive, self.relay), self.past)

    def _had_before(self, promised: int) -> None:
        found = self._restorable()
        lost = {(ts, name) for ts, name in self.had - found if ts >= promised}
        assert not lost, (
            f"of the promised range, from {promised} on, nobody can restore {sorted(lost)[:5]}"
        )
        self.had = found

    def _relay_has(self, positions: dict[str, int], keep_ms: int) -> None:
        """What was there, and a consumer or the time to keep needs, is there."""
        first = self.relay.first()
        assert first is not None
        needed = min(positions.values()) - tso.span(keep_ms) if positions and keep_ms else 0
        assert first.lo <= max(needed, self.first_lo)
        self.first_lo = first.lo

    first_lo = model.BEGIN

    def _token(self) -> str:
        return f"{self.random.randrange(1 << 40):x}"


def _anything(summary: object) -> int:
    return int(any(getattr(summary, name) for name in ("windows", "snapshots", "segments")))


STEPS = {
    World.land: 30,
    World.apply: 14,
    World.archive_some: 22,
    World.compact: 4,
    World.make_snapshot: 12,
    World.retain: 16,
    World.forget_a_snapshot: 1,
    World.begin_to_read: 3,
    World.read_on: 2,
    World.give_a_consumer_up: 1,
}


def run(root: Path, seed: int, steps: int = 60) -> World:
    world = World(root, seed)
    world.past.begin(world.random.randrange(4))
    for step in world.random.choices(list(STEPS), list(STEPS.values()), k=steps):
        if step is World.land or world.relay.first() is not None:
            step(world)
    world.retain()
    return world


@pytest.mark.slow
def test_every_moment_of_the_promised_range_stays_restorable(tmp_path):
    """More seeds were tried; these three remove something, or they would show nothing."""
    assert sum(run(tmp_path / str(seed), seed).removed for seed in range(3)) >= 4
