"""How long applying waits for a job's rows, what it declines, and where it goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from sluice.etl.apply import ApplySummary, run_apply
from sluice.etl.apply._aligned_chunks import AlignedChunkApplier
from sluice.etl.changes.rules import ReplicationRules
from sluice.etl.downstream import ChunkResult
from sluice.etl.downstream.sinks import AcceptsChunks
from sluice.etl.settings import Downstream, File
from sluice.etl.settings.rules import parse_filter, parse_routes
from sluice.relay import (
    AlignedChunk,
    ChunkCancelled,
    ChunkReady,
    Control,
    RelayLog,
    TableRepair,
    WindowRecord,
)
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from tests.etl.apply.test_apply_random import checkpoint, fresh, rows_of, settings_for
from tests.etl.chunk_model import Cut, Told, appoint, deliver, make_ready
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES

PLAIN = Cut("plain")
LONG = 60_000


def _with_rows(seed: int) -> tuple[Told, list[int]] | None:
    """A history of 40 transactions, and their commit timestamps, with some rows in the middle."""
    told = Told.of(seed, 40)
    stamps = [ts for ts, _ in told.history.transactions]
    return (told, stamps) if len(told.rows_at(stamps[20], PLAIN)) > 2 else None


class Scene:
    """A relay with a history, a downstream that is at its beginning, and applying in a thread."""

    def __init__(
        self, server: MariaDBServer, folder: Path, sizes: tuple[int, ...] = (7, 3)
    ) -> None:
        self.told, self.stamps = next(
            history for seed in range(100) if (history := _with_rows(seed)) is not None
        )
        self.relay: RelayLog = self.told.history.land(f"file://{folder}/relay", sizes)
        self.settings = settings_for(server, self.relay.url, 1000)
        self.connection = fresh(server)
        self.last = self.stamps[-1]
        self.middle = self.stamps[20]
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.ended: list[ApplySummary] = []

    def wait(self, milliseconds: int) -> None:
        self.settings = replace(
            self.settings, apply=replace(self.settings.apply, aligned_chunk_wait_ms=milliseconds)
        )

    def apply(self, **more: Any) -> ApplySummary:
        """Apply all that is landed."""
        limits = {"until_ts": self.last, "run_seconds": 60} | more
        return run_apply(self.settings, prepare=local_preparer(self.settings), **limits)

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """Apply meanwhile, through all that is landed."""

        def run() -> None:
            self.ended.append(self.apply(stop=self._stop))

        self._thread = threading.Thread(target=run)
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(60)

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not reached():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def at(self, ts: int) -> Callable[[], bool]:
        return lambda: self.checkpoint() == ts

    def checkpoint(self) -> int:
        self.connection.rollback()
        return checkpoint(self.connection)

    def note(self, at_ts: int) -> ChunkResult | None:
        self.connection.rollback()
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT result FROM tidb_binlog.sluice_chunks WHERE at_ts = %s", (at_ts,)
            )
            row = cursor.fetchone()
        return ChunkResult.parse(row[0]) if row else None

    def right(self, *left_out: str) -> bool:
        """Whether all tables are as upstream at the end."""
        self.connection.rollback()
        names = set(TABLES) - set(left_out)
        return all(
            rows_of(self.connection, name) == self.told.history.expected(name) for name in names
        )


@pytest.fixture
def scene(mariadb: MariaDBServer, tmp_path: Path) -> Scene:
    return Scene(mariadb, tmp_path)


def test_applying_stands_at_an_aligned_chunk_until_its_rows_come_and_goes_on(scene: Scene) -> None:
    scene.wait(LONG)
    asked = appoint(scene.relay, PLAIN, scene.middle)
    with scene.applying():
        scene.until(scene.at(scene.middle))
        scene.connection.cursor().execute("UPDATE rnd.plain SET v = 99")
        scene.connection.commit()
        deliver(scene.relay, scene.told, PLAIN, asked)
        scene.until(scene.at(scene.last))
    assert scene.right()
    note = scene.note(scene.middle)
    assert note is not None and note.replaced == note.rows == len(
        scene.told.rows_at(scene.middle, PLAIN)
    )


def test_rows_that_dont_come_in_time_are_not_waited_for_and_come_too_late(scene: Scene) -> None:
    scene.wait(1)
    asked = appoint(scene.relay, PLAIN, scene.middle)
    scene.apply()
    outcome = scene.relay.aligned_chunks.outcome(scene.middle)
    assert (
        isinstance(outcome, ChunkCancelled)
        and outcome.by == "apply"
        and "not there after" in outcome.why
    )
    deliver(scene.relay, scene.told, PLAIN, asked)
    assert scene.relay.aligned_chunks.outcome(scene.middle) == outcome
    assert scene.right()


@pytest.mark.slow
def test_rows_of_a_chunk_that_are_late_again_and_again_are_waited_for_longer(scene: Scene) -> None:
    scene.wait(100)
    for at_ts in scene.stamps[10:17]:
        appoint(scene.relay, PLAIN, at_ts, number=5)
    appoint(scene.relay, PLAIN, scene.stamps[17], number=6)
    scene.apply()
    outcomes = [scene.relay.aligned_chunks.outcome(at_ts) for at_ts in scene.stamps[10:18]]
    assert all(isinstance(outcome, ChunkCancelled) for outcome in outcomes)
    waited = [
        float(outcome.why.split()[-5])
        for outcome in outcomes
        if isinstance(outcome, ChunkCancelled)
    ]
    assert all(
        s >= least
        for s, least in zip(waited, (0.1, 0.1, 0.1, 0.1, 0.2, 0.4, 0.8, 0.1), strict=True)
    )
    assert scene.right()


def test_without_changes_behind_it_an_aligned_chunk_is_waited_for_longer(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    scene = Scene(mariadb, tmp_path)
    scene.wait(1_000)
    at_ts = scene.last + 5
    scene.relay.commit(WindowRecord(scene.last, at_ts + 5, 7, "t", 0, 0, 0, 1, (), {}))
    asked = appoint(scene.relay, PLAIN, at_ts)
    scene.last = at_ts + 5
    with scene.applying():
        scene.until(scene.at(at_ts))
        time.sleep(1.2)
        assert scene.relay.aligned_chunks.outcome(at_ts) is None
        deliver(scene.relay, scene.told, PLAIN, asked)
        scene.until(scene.at(scene.last))
    note = scene.note(at_ts)
    assert note is not None and note.same == note.rows > 0


def test_a_void_aligned_chunk_holds_nobody_up(scene: Scene) -> None:
    scene.wait(LONG)
    appoint(scene.relay, PLAIN, scene.middle)
    scene.relay.aligned_chunks.settle(scene.middle, ChunkCancelled("given up", "job"))
    scene.apply(run_seconds=240)
    assert scene.checkpoint() == scene.last


def test_an_aligned_chunk_that_is_removed_while_applying_waits_for_it_holds_nobody_up(
    scene: Scene,
) -> None:
    scene.wait(LONG)
    appoint(scene.relay, PLAIN, scene.middle)
    with scene.applying():
        scene.until(scene.at(scene.middle))
        RelayLog.open(scene.relay.url).aligned_chunks.remove(scene.middle)
        scene.until(scene.at(scene.last))
    assert scene.relay.storage.names("aligned-chunks") == []
    assert scene.right()


def test_several_aligned_chunks_in_one_window_and_one_at_its_end_are_kept_in_order(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    scene = Scene(mariadb, tmp_path, (40,))
    moments = [scene.stamps[5], scene.stamps[5] + 1, scene.stamps[20], scene.last]
    for at_ts in moments:
        make_ready(scene.relay, scene.told, PLAIN, at_ts)
    scene.relay.commit(WindowRecord(scene.last, scene.last + 9, 7, "t", 0, 0, 0, 1, (), {}))
    scene.last += 9
    scene.apply()
    for at_ts in moments:
        note = scene.note(at_ts)
        assert (
            note is not None
            and not note.declined
            and note.same == note.rows == len(scene.told.rows_at(at_ts, PLAIN))
        )


def test_an_aligned_chunk_in_the_middle_of_a_window_looks_at_no_other_window_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr(RelayLog, "find", lambda self, ts: self.next(ts) or looked.append(ts))
    scene.apply(until_ts=scene.relay.first().hi)
    for at_ts in scene.stamps[10:30]:
        make_ready(scene.relay, scene.told, PLAIN, at_ts)
    looked.clear()
    scene.apply(until_ts=scene.stamps[35])
    assert [ts for ts in looked if ts in scene.stamps[10:30]] == []


def test_a_process_that_begins_at_an_aligned_chunk_keeps_it_once(scene: Scene) -> None:
    scene.wait(LONG)
    asked = appoint(scene.relay, PLAIN, scene.middle)
    with scene.applying():
        scene.until(scene.at(scene.middle))
    scene._stop.clear()
    deliver(scene.relay, scene.told, PLAIN, asked)
    scene.connection.cursor().execute("DELETE FROM rnd.plain LIMIT 1")
    scene.connection.commit()
    scene.apply(until_ts=scene.stamps[21])
    note = scene.note(scene.middle)
    assert note is not None and note.inserted == 1
    scene.apply()
    assert scene.right()


def test_while_applying_is_paused_nothing_is_written_and_afterwards_it_is(scene: Scene) -> None:
    scene.wait(LONG)
    asked = appoint(scene.relay, PLAIN, scene.middle)
    with scene.applying():
        scene.until(scene.at(scene.middle))
        scene.relay.change_control(lambda _: Control(apply_paused=True))
        deliver(scene.relay, scene.told, PLAIN, asked)
        time.sleep(0.5)
        assert scene.checkpoint() == scene.middle
        with scene.connection.cursor() as cursor:
            assert (
                not cursor.execute("SHOW TABLES IN tidb_binlog LIKE 'sluice_chunks'")
                or scene.note(scene.middle) is None
            )
        scene.relay.change_control(lambda _: Control(apply_until_ts=scene.middle))
        scene.until(lambda: scene.note(scene.middle) is not None)
        time.sleep(0.3)
        assert scene.checkpoint() == scene.middle
        scene.relay.change_control(lambda _: Control())
        scene.until(scene.at(scene.last))
    assert scene.right()


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_changes_to_rows_known_as_missing_stop_nothing_and_their_chunk_completes_the_table(
    scene: Scene, mode: str
) -> None:
    scene.settings = replace(scene.settings, apply=replace(scene.settings.apply, mode=mode))
    scene.apply(until_ts=scene.middle)
    names = ("account", "unique", "nonclustered", "heap", "parted")
    for name in names:
        scene.connection.cursor().execute(f"DELETE FROM rnd.`{name}`")
    scene.connection.commit()
    scene.relay.aligned_chunks.begin_repair(
        TableRepair("job", "job", tuple(TABLES[name].id for name in names))
    )
    for number, name in enumerate(names):
        make_ready(scene.relay, scene.told, Cut(name), scene.stamps[34] + number)
    scene.apply()
    assert scene.right()
    scene.relay.aligned_chunks.end_repair("job")


def declines(scene: Scene, ready: ChunkReady, said: str, *, is_passing: bool) -> None:
    appoint(scene.relay, PLAIN, scene.middle)
    scene.relay.aligned_chunks.settle(scene.middle, ready)
    scene.apply()
    note = scene.note(scene.middle)
    assert note is not None and said in note.declined, note
    assert note.is_passing == is_passing
    assert scene.right()


def test_a_table_that_a_ddl_changed_after_its_definition_was_read_is_read_again(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    scene = Scene(mariadb, tmp_path)
    at_ts = scene.last + 5
    plain = TABLES["plain"]
    ddl = DdlJob(
        commit_ts=scene.last + 3,
        start_ts=scene.last + 2,
        job_id=88,
        query="ALTER TABLE plain COMMENT 'x'",
        type=0,
        schema_name="rnd",
        table_name="plain",
        schema_version=2,
        effect=DdlEffect({}, {plain.id: plain}),
    )
    relay = scene.relay
    relay.commit(
        WindowRecord(
            scene.last,
            at_ts + 5,
            7,
            "t",
            0,
            0,
            0,
            2,
            (),
            {str(plain.id): plain.to_json()},
            ddls=(ddl.to_json(),),
        )
    )
    for moment, defined_ts in ((at_ts, scene.last + 2), (at_ts + 1, scene.last + 3)):
        appoint(relay, PLAIN, moment)
        relay.aligned_chunks.settle(moment, ChunkReady(plain.to_json(), defined_ts))
    scene.last = at_ts + 5
    scene.apply()
    note, other = scene.note(at_ts), scene.note(at_ts + 1)
    assert note is not None and "DDL job 88" in note.declined and note.is_passing
    assert other is not None and not other.declined


def test_rows_of_another_table_are_declined(scene: Scene) -> None:
    declines(
        scene,
        ChunkReady(TABLES["ci"].to_json(), scene.middle),
        "rows of table id 103",
        is_passing=True,
    )


def test_rows_that_are_masked_otherwise_than_by_the_rules_are_declined(scene: Scene) -> None:
    ready = ChunkReady(TABLES["plain"].to_json(), scene.middle, masks={"v": '["null", "", ""]'})
    declines(scene, ready, "the rules of the job mask columns otherwise", is_passing=False)


def test_a_file_that_is_gone_or_damaged_is_declined_with_its_name(scene: Scene) -> None:
    made = make_ready(scene.relay, scene.told, PLAIN, scene.middle)
    path = f"jobs/job/{made.at_ts}-0.load"
    scene.relay.storage.replace(path, b"1\t1\n")
    scene.apply()
    note = scene.note(scene.middle)
    assert note is not None and path in note.declined and note.is_passing
    assert scene.right()


RULES = {
    "filtered": {
        "filters": parse_filter({"ignore-table": [{"db-name": "rnd", "tbl-name": "plain"}]})[0]
    },
    "partial": {
        "filters": parse_filter(
            {
                "binlog-filter-rule": {"keep": {"ignore-event": ["delete"]}},
                "table-migrate-rule": [
                    {"source": {"schema": "rnd", "table": "plain"}, "binlog-filter-rule": ["keep"]}
                ],
            }
        )[0]
    },
    "merged": {
        "routes": parse_routes(
            [
                {
                    "schema-pattern": "rnd",
                    "table-pattern": "pla*",
                    "target-schema": "rnd",
                    "target-table": "plain",
                }
            ]
        )
    },
}


@pytest.mark.parametrize("rules", RULES)
def test_a_table_that_isnt_downstream_as_it_is_upstream_is_declined_by_name(
    scene: Scene, rules: str
) -> None:
    scene.settings = replace(scene.settings, **RULES[rules])
    make_ready(scene.relay, scene.told, PLAIN, scene.middle)
    scene.apply()
    note = scene.note(scene.middle)
    assert note is not None and "plain" in note.declined and not note.is_passing, note


def test_a_chunk_goes_where_routes_take_its_table(scene: Scene) -> None:
    route = {
        "schema-pattern": "rnd",
        "table-pattern": "plain",
        "target-schema": "other",
        "target-table": "flat",
    }
    scene.settings = replace(scene.settings, routes=parse_routes([route]))
    scene.connection.cursor().execute("CREATE DATABASE other")
    scene.connection.cursor().execute("CREATE TABLE other.flat LIKE rnd.plain")
    make_ready(scene.relay, scene.told, PLAIN, scene.middle)
    scene.apply()
    note = scene.note(scene.middle)
    assert note is not None and not note.declined and note.same == note.rows > 0


def test_a_folder_takes_no_rows_and_says_so(scene: Scene, tmp_path: Path) -> None:
    appoint(scene.relay, PLAIN, scene.middle)
    settings = replace(
        scene.settings, downstream=Downstream(type="file"), file=File(dir=str(tmp_path / "out"))
    )
    run_apply(settings, until_ts=scene.last, run_seconds=240, prepare=local_preparer(settings))
    outcome = scene.relay.aligned_chunks.outcome(scene.middle)
    assert isinstance(outcome, ChunkCancelled) and "no database" in outcome.why


class _SlowJob:
    """A relay log's aligned chunks whose rows come so long after applying has come to them."""

    def __init__(self, needs_s: float) -> None:
        self.needs_s = needs_s
        self.now_s = self.began_s = 0.0
        self.late: list[int] = []

    def outcome(self, at_ts: int) -> ChunkReady | None:
        return ChunkReady({}, at_ts) if self.now_s - self.began_s >= self.needs_s else None

    def exists(self, at_ts: int) -> bool:
        return True

    def settle(self, at_ts: int, outcome: ChunkCancelled) -> ChunkCancelled:
        self.late.append(at_ts)
        return outcome

    def pass_time(self) -> bool:
        self.now_s += 0.1
        return True

    def apply(self, applier: AlignedChunkApplier, number: int) -> None:
        self.began_s = self.now_s
        chunk = AlignedChunk(number, "backfill-1", number, 7, "shop", "orders")
        sink = mock.create_autospec(AcceptsChunks, instance=True)
        sink.why_not.return_value, sink.find_result.return_value = "", ChunkResult()
        began_s = self.began_s
        applier.apply(chunk, sink, lambda: began_s, self.pass_time, lambda step: None)


def test_what_the_last_chunks_of_a_job_needed_is_waited_for_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = _SlowJob(1.5)
    relay: Any = SimpleNamespace(aligned_chunks=job)
    applier = AlignedChunkApplier(relay, ReplicationRules(), wait_ms=1000)
    monkeypatch.setattr("sluice.etl.apply._aligned_chunks.time.monotonic", lambda: job.now_s)
    for number in range(1, 30):
        job.apply(applier, number)
    assert job.late == [1, 2, 3, 4]
    job.needs_s = 0.3
    for number in range(30, 40):
        job.apply(applier, number)
    job.needs_s = 1.5
    job.apply(applier, 40)
    assert job.late == [1, 2, 3, 4, 40]  # quick ones shortened the wait again
