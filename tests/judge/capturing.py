"""Plays a recording of a history as TiKV's change data, and records again what a capture makes of
it: through splits, merges, moves, lost streams, commands that come twice, and captures that die.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sluice.devstack.tidb import Cluster, ClusterOptions
from sluice.devstack.tidb.change_writer import ChangeWriter
from sluice.devstack.tidb.mvcc_records import Change
from sluice.devstack.tidb.row_writes import Image
from sluice.errors import SluiceError
from sluice.pump_service.capture import Capture, CaptureCluster
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.schema_tracker import SchemaTracker
from sluice.pump_service.store import Record
from sluice.tidb import PDClient, TiKVClient, pb
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.codec.memcomparable import decode_int
from sluice.tidb.partitions import physical_ids
from sluice.tidb.record_keys import handle_of_insert, handles_of_images, record_key
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import hash_field_key, string_key
from tests.judge import wire
from tests.judge.invented_tidb import Upstream
from tests.pump_service.storekit import MemoryStore

_PATIENCE_S = 120
_DEATHS, _FAILURES, _ACCIDENTS = 0.02, 0.05, 0.5
"""How likely they are at each step of some 10 ms, and a write of the sink to fail."""
_MEMORY_BYTES = (1 << 12, 1 << 20)
"""So few that changes go to files, or enough."""


class CaptureDiedError(SluiceError):
    """A sink that fails."""

    transient = True
    hint = "none: the capture begins again"


class _Store(MemoryStore):
    """Fails now and then, with a part of the records written."""

    def __init__(self, begin_ts: int, rng: random.Random) -> None:
        super().__init__(begin_ts)
        self._rng = rng

    def submit(
        self, records: Sequence[Record], done: Callable[[BaseException | None], None]
    ) -> None:
        if self._rng.random() >= _FAILURES:
            super().submit(records, done)
            return
        super().submit(records[: self._rng.randrange(len(records))], lambda _: None)
        done(CaptureDiedError("the store failed"))


def record_captured(upstream: Upstream, folder: Path, rng: random.Random) -> None:
    """Put what is captured in the place of the binlogs of the recording of `upstream`: a Prewrite a
    transaction, which has its commit timestamp.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        store = _Stage(upstream, folder, loop, rng).play()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    found = {(r.commit_ts, r.start_ts): r.payload for r in store.records if r.tp == PREWRITE}
    with gzip.open(folder / "binlogs.bin.gz", "wb", compresslevel=1) as file:
        for _, payload in sorted(found.items()):
            file.write(wire.uvarint(len(payload)) + payload)


class _Writer(ChangeWriter):
    """Puts rows into the partitions where the history has them."""

    def __init__(self, cluster: Cluster, places: Mapping[tuple[int, int], Sequence[int]]) -> None:
        assert cluster.recording is not None
        super().__init__(cluster.store, cluster._versions, cluster.recording.meta_keys())
        self._catalogs, self._partitions = cluster._versions, places
        self._known: set[int] = set()

    def images(self, start_ts: int, mutation: pb.binlog.TableMutation, version: int) -> list[Image]:
        """Return images with one key each, in the order of `RowWrites.images_of`."""
        table = self._catalogs.definition(mutation.table_id, version)
        assert table is not None
        ids = list(zip(mutation.sequence, self._partitions[start_ts, table.id], strict=True))
        inserts, deletes, updates = (
            [partition for kind, partition in ids if kind == own]
            for own in (pb.binlog.Insert, pb.binlog.DeleteRow, pb.binlog.Update)
        )
        handles = [
            *map(partial(handle_of_insert, table), mutation.inserted_rows),
            *(handles_of_images(table, row, 1)[0] for row in mutation.deleted_rows),
            *(each for row in mutation.updated_rows for each in handles_of_images(table, row, 2)),
        ]
        whole = [*inserts, *deletes, *(each for one in updates for each in (one, one))]
        return [
            Image(table.id, False, (record_key(partition, handle or b""),), 0)
            for partition, handle in zip(whole, handles, strict=True)
        ]

    def _write_partitions(
        self,
        table: Table,
        mutation: pb.binlog.TableMutation,
        images: list[Image],
        start_ts: int,
        commit_ts: int,
    ) -> None:
        """Leave out what goes into partitions that aren't there yet: no reader sees it."""
        for each in self._catalogs.catalog(commit_ts).tables.values():
            self._known |= physical_ids(each)
        seen = [
            image if decode_int(image.keys[0], 1)[0] in self._known else replace(image, keys=(b"",))
            for image in images
        ]
        super()._write_partitions(table, mutation, seen, start_ts, commit_ts)


class _Stage:
    """The stand-in cluster on a loop of its own, and one capture after the other."""

    def __init__(
        self, upstream: Upstream, folder: Path, loop: asyncio.AbstractEventLoop, rng: random.Random
    ) -> None:
        self._history, self._folder, self._loop, self._rng = upstream, folder, loop, rng
        self._captures = 0

    def play(self) -> MemoryStore:
        options = ClusterOptions(
            "http://127.0.0.1:1",
            recording=self._folder,
            min_ts_interval_s=0.02,
            has_capture=True,
            stores=2,
        )
        self._cluster = cluster = self._call(lambda: Cluster(options))
        cluster._capture = _Writer(cluster, self._history.places)
        self._put_steps()
        self._await(self._cluster.start())
        pd = PDClient(f"http://127.0.0.1:{self._cluster.port}")
        self._upstream = CaptureCluster(pd, TiKVClient(pd))
        self._store = _Store(pd.tso(), self._rng)
        capture = self._begun()
        try:
            self._await(self._cluster.replay({}))
            deadline = time.monotonic() + _PATIENCE_S
            while self._cluster.work.state == "replaying" or not self._is_over():
                assert time.monotonic() < deadline, (self._cluster.work.state, capture.status())
                assert not capture.status().failure, capture.status().failure
                time.sleep(0.01)
                if self._rng.random() < _ACCIDENTS:
                    self._call(self._disturb)
                if self._rng.random() < _DEATHS:
                    capture.stop()
                    capture = self._begun()
            assert self._cluster.work.state == "done", self._cluster.work.error
            return self._store
        finally:
            capture.stop()
            self._upstream.tikv.close()
            pd.close()
            self._await(self._cluster.stop())

    def _put_steps(self) -> None:
        """Give TiKV the schema version of each step of a job, and the definitions known of steps.

        The stand-in has only those of a job's last step, with its commit.
        """
        up = self._history
        for version, ts in up.since.items():
            changes = {
                string_key(f"Diff:{version}"): Change(json.dumps(up.diffs[version]).encode()),
                string_key("SchemaVersionKey"): Change(str(version).encode()),
            }
            if version in up.steps:
                schema_id, info = up.steps[version]
                key = hash_field_key(f"DB:{schema_id}", f"Table:{info['id']}".encode())
                changes[key] = Change(json.dumps(info).encode())
            self._cluster.store.put_all(changes, ts - 1, ts)

    def _is_over(self) -> bool:
        return self._store.max_commit_ts >= self._cluster.commits.newest_ts

    def _begun(self) -> Capture:
        self._captures += 1
        made = Capture(
            self._upstream,
            self._begin,
            self._folder / f"capture-{self._captures}",
            self._rng.choice(_MEMORY_BYTES),
        )
        made.start()
        return made

    def _begin(self) -> tuple[int, BinlogWriter]:
        ts = self._store.max_commit_ts
        schema = SchemaTracker.read(self._upstream.tikv, ts)
        return ts, BinlogWriter(self._store, schema)  # type: ignore[arg-type] # keeps records only

    def _disturb(self) -> None:
        changes, rng = self._cluster.changes, self._rng
        region = rng.choice(changes.regions.between(b"", b""))
        keys = list(self._cluster.store.scan(b"", b""))
        what = rng.randrange(6)
        if what == 0 and keys:
            changes.split(rng.choice(keys))
        elif what == 1:
            changes.merge(region.id)
        elif what == 2:
            changes.transfer(region.id, rng.choice((1, 2)), is_known=rng.random() < 0.5)
        elif what == 3 and rng.random() < 0.2:
            changes.break_streams(rng.choice((1, 2)))
        elif what == 4:
            changes.congest(region.id)
        changes.repeated_commands = rng.randrange(8)

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def _call(self, act: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return act()

        return self._await(called())
