"""From a Drainer to the pipeline and back, as an operator types it: what is said, what is left,
what is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from sluice.devstack.stack import Stack
from sluice.etl import load_settings, operate
from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError, OtherWriterError
from sluice.etl.downstream import Checkpoint, CheckpointTable, InFlight, MySQLSession
from sluice.etl.operate import takeover
from sluice.etl.operate.overview import overview
from sluice.relay import Control, RelayLog, StopMark
from sluice.relay.storage import LocalStorage
from sluice.tidb import EtcdClient, NodeStatus, PDClient, Registry
from sluice.tidb.tso import compose
from tests.cli.test_operate import Run, run, typed
from tests.etl.apply.test_safe_mode import forget, leave_checkpoint, read_checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.story import Story, table
from tests.tidb.etcd_fixture import remove_all

ITEM = table(11, "item", "id int", "v int", primary="id")


@pytest.fixture(scope="module")
def pd_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """PD and etcd of a stand-in cluster."""
    stack = Stack(tmp_path_factory.mktemp("up"))
    try:
        stack.up(["etcd", "cluster"], recording=RECORDINGS / "shop")
        yield f"http://127.0.0.1:{stack.site().ports['cluster']}"
    finally:
        stack.down()


@pytest.fixture
def registry(pd_url: str) -> Iterator[Registry]:
    with EtcdClient(pd_url, timeout_s=60) as etcd:
        yield Registry(etcd)
        remove_all(etcd, "/tidb-binlog/v1/drainers/")


@pytest.fixture
def story(mariadb: MariaDBServer, pd_url: str, tmp_path: Path) -> Story:
    with PDClient(pd_url, timeout_s=60) as pd:
        story = Story(mariadb, tmp_path, cluster_id=pd.cluster_id)
    story.create(ITEM, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    story.insert(ITEM, {"id": 1, "v": 1})
    return story


@pytest.fixture
def config(story: Story, pd_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sluice.toml"
    path.write_text(
        f'[upstream]\npd-urls = "{pd_url}"\n[relay]\nurl = "{story._url}"\n[downstream]\nhost ='
        f' "127.0.0.1"\nport = {story.server.port}\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(path))
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sluice.etl.operate.takeover._CHECKPOINT_WATCH_S", 0.1)
    return path


def apply(story: Story, config: Path, until: int = 0) -> None:
    settings = load_settings(config)
    run_apply(
        settings, until_ts=until or story._ts, run_seconds=240, prepare=local_preparer(settings)
    )


def drainer(state: str) -> NodeStatus:
    return NodeStatus(
        "drainer-1:8249", "10.0.0.1:8249", state, update_ts=compose(time.time_ns() // 1_000_000)
    )


def leave_flight(story: Story, config: Path, at: int, through: int) -> None:
    """As if several sessions had been writing what was committed after `at`."""
    owner = RelayLog.open(story._url).ownership()
    assert owner is not None
    session = MySQLSession(load_settings(config).downstream)
    session.connect()
    CheckpointTable(session, story.cluster_id).save(
        Checkpoint(at, 3, False, in_flight=InFlight(through), owner=owner.pipeline)
    )
    session.commit()
    session.close()


def test_to_a_drainer_and_back_again(
    story: Story, config: Path, sluice: Run, registry: Registry
) -> None:
    apply(story, config)
    at = story._ts
    story.insert(ITEM, {"id": 2, "v": 2})
    done = sluice("handover", "--to-drainer")
    said = done.stdout
    assert (
        done.stderr.splitlines()[0].startswith("pipeline sluice-")
        and f":{story.server.port}, checkpoint tidb_binlog.checkpoint" in done.stderr
    )
    assert (
        f"complete through {at}" in said
        and "sluice drainers offline sluice-" in said
        and "start the Drainer" in said
    )
    with story.server.connect() as connection:
        left = read_checkpoint(connection)
        assert left == {
            "consistent": True,
            "commitTS": at,
            "ts-map": {},
            "schema-version": left["schema-version"],
        }
        with pytest.raises(
            OtherWriterError, match=r"handed over to a Drainer .* `sluice takeover`"
        ):
            apply(story, config)
        assert "STOPPED     the downstream was handed over" in sluice("status", code=4).stdout
        with connection.cursor() as cursor:  # what a Drainer does
            cursor.execute("INSERT INTO d.item VALUES (2, 2)")
        leave_checkpoint(connection, story._ts, consistent=True, cluster_id=story.cluster_id)
    assert "written by a Drainer, not by this pipeline" in sluice("status", code=4).stdout
    registry.update_drainer(drainer("online"))
    refused = sluice("takeover", code=1)
    assert (
        "drainer drainer-1:8249 at 10.0.0.1:8249 is online" in refused.stderr
        and "sluice drainers pause drainer-1:8249" in refused.stderr
    )
    registry.update_drainer(drainer("paused"))
    listed = typed("takeover", "--check").stdout.splitlines()
    found = json.loads(typed("takeover", "--check", "--json").stdout)
    assert any("was stopped" in each["text"] for each in found["results"]), found
    # a stop that takeover lifts by itself is a warning, and listed once
    (stop,) = (line for line in listed if "was stopped" in line)
    assert stop.startswith("warn  relay log ")
    assert f"checks: {sum(line.startswith('FAIL ') for line in listed)} failed" in listed[-2]
    assert f"applying goes on from {story._ts}" in sluice("takeover").stdout
    story.insert(ITEM, {"id": 3, "v": 3})
    apply(story, config)
    assert story.rows("item") == [(1, 1), (2, 2), (3, 3)]
    assert "nothing to do" in sluice("takeover").stdout
    assert "sluice handover --to-drainer" in sluice("handover", code=2).stderr


def test_a_paused_drainer_whose_process_still_answers_is_not_taken_over_from(
    story: Story, config: Path, sluice: Run, registry: Registry
) -> None:
    with story.server.connect() as connection:
        leave_checkpoint(connection, story._ts, consistent=True, cluster_id=story.cluster_id)
    with HTTPServer(("127.0.0.1", 0), Lives) as process:
        threading.Thread(target=process.serve_forever, daemon=True).start()
        registry.update_drainer(replace(drainer("paused"), host=f"127.0.0.1:{process.server_port}"))
        said = sluice("takeover", code=1).stderr
        assert "drainer-1:8249 is paused in the registry, and its process answers" in said
        assert "then `sluice takeover`" in said
        process.shutdown()
    assert "applying goes on" in sluice("takeover").stdout


def test_another_server_at_a_paused_drainers_address_is_no_drainer(
    story: Story, config: Path, sluice: Run, registry: Registry
) -> None:
    with story.server.connect() as connection:
        leave_checkpoint(connection, story._ts, consistent=True, cluster_id=story.cluster_id)
    with HTTPServer(("127.0.0.1", 0), OtherServer) as process:
        threading.Thread(target=process.serve_forever, daemon=True).start()
        registry.update_drainer(replace(drainer("paused"), host=f"127.0.0.1:{process.server_port}"))
        assert "applying goes on" in sluice("takeover").stdout
        process.shutdown()


def test_a_session_that_writes_downstream_is_not_taken_over_beside(
    story: Story, config: Path, sluice: Run, registry: Registry
) -> None:
    apply(story, config)
    with story.server.connect() as connection:
        leave_checkpoint(connection, story._ts, consistent=True, cluster_id=story.cluster_id)
    other = story.server.connect(database="d")
    writing = threading.Thread(
        target=killed_later(other, "INSERT INTO item SELECT 7, SLEEP(60)"), daemon=True
    )
    writing.start()
    with story.server.connect() as connection, connection.cursor() as cursor:
        for _ in range(600):
            cursor.execute(
                "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE 'INSERT INTO item"
                " SELECT 7%'"
            )
            if found := cursor.fetchall():
                break
            time.sleep(0.05)
        assert "runs: INSERT INTO item SELECT 7" in sluice("takeover", code=1).stderr
        cursor.execute(f"KILL {found[0][0]}")
    writing.join(30)
    assert "applying goes on" in sluice("takeover").stdout


def test_status_and_pages_show_the_checkpoint_that_a_copy_wrote_before_anything_is_landed(
    story: Story, config: Path, sluice: Run
) -> None:
    at = compose(1_700_000_000_000)
    with story.server.connect() as connection:
        leave_checkpoint(connection, at, consistent=True, cluster_id=story.cluster_id)
    config.write_text(config.read_text().replace("/relay", "/another"))
    assert str(at) in next(
        line for line in typed("status").stdout.splitlines() if line.startswith("checkpoint")
    )
    assert overview(load_settings(config), patience_s=60).downstream.at_ts == at


class Lives(BaseHTTPRequestHandler):
    """A Drainer's process."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"PumpPos": {}, "Synced": false}')

    def log_message(self, format: str, *args: object) -> None:
        pass


class OtherServer(Lives):
    """A server without a page for it."""

    def do_GET(self) -> None:
        self.send_error(404)


def killed_later(connection: Any, statement: str) -> Callable[[], None]:
    """A statement that is going to be killed."""

    def run() -> None:
        with contextlib.suppress(pymysql.err.Error), connection.cursor() as cursor:
            cursor.execute(statement)

    return run


def test_no_process_of_the_pipeline_writes_after_a_handover(
    story: Story, config: Path, sluice: Run
) -> None:
    apply(story, config)
    settings, ended = load_settings(config), []

    def run() -> None:
        try:
            run_apply(settings, run_seconds=240, prepare=local_preparer(settings))
        except Exception as error:
            ended.append(error)

    tasks = [threading.Thread(target=run) for _ in range(2)]
    for task in tasks:
        task.start()
    for number in range(2, 30):
        story.insert(ITEM, {"id": number, "v": number})
    sluice("handover", "--to-drainer")
    with story.server.connect() as connection:
        left, rows = read_checkpoint(connection), story.rows("item")
        # as if they had not noticed the pause
        RelayLog.open(story._url).change_control(lambda _: Control())
        for task in tasks:
            task.join(60)
        assert len(ended) == 2 and (read_checkpoint(connection), story.rows("item")) == (left, rows)
        assert [number for number, _ in sorted(rows)] == list(range(1, len(rows) + 1))


def test_what_is_under_way_is_finished_before_a_handover(
    story: Story, config: Path, sluice: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(story, config)
    at = story._ts
    story.insert(ITEM, {"id": 2, "v": 2})
    leave_flight(story, config, at, story._ts)
    assert (
        f"reaches to {story._ts} is not finished"
        in sluice("handover", "--to-drainer", "--wait", 0.1, code=1).stderr
    )
    monkeypatch.setattr("sluice.etl.operate.handover._IDLE_WAIT_S", 0.1)
    task = threading.Thread(target=lambda: apply(story, config, story._ts))
    task.start()
    assert (
        f"complete through {story._ts}" in sluice("handover", "--to-drainer", "--wait", 60).stdout
    )
    task.join(60)
    assert story.rows("item") == [(1, 1), (2, 2)]


def test_a_checkpoint_that_still_moves_is_not_taken_over(
    story: Story, config: Path, sluice: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(story, config)
    moments = itertools.count(story._ts)

    def somebody_writes(seconds: float) -> None:
        with story.server.connect() as connection:
            leave_checkpoint(connection, next(moments), cluster_id=story.cluster_id)

    somebody_writes(0)
    with monkeypatch.context() as patch:
        patch.setattr("sluice.etl.operate.takeover.time", SimpleNamespace(sleep=somebody_writes))
        assert "another process writes there" in sluice("takeover", code=1).stderr
    assert (
        f"127.0.0.1:{story.server.port}, checkpoint tidb_binlog.checkpoint is this pipeline's now"
        in sluice("takeover").stdout
    )


def test_after_a_drainer_was_seen_beside_the_pipeline_it_goes_on_in_safe_mode(
    story: Story, config: Path, sluice: Run, registry: Registry
) -> None:
    apply(story, config)
    story.insert(ITEM, {"id": 2, "v": 2})
    registry.update_drainer(drainer("online"))
    with pytest.raises(OtherWriterError, match="sluice takeover"):
        apply(story, config)
    with story.server.connect() as connection, connection.cursor() as cursor:
        # the Drainer was killed before it saved its checkpoint
        cursor.execute("INSERT INTO d.item VALUES (2, 2)")
        registry.update_drainer(drainer("offline"))
        assert "makes no difference" in sluice("takeover").stdout
        found = read_checkpoint(connection)
        assert not found["consistent"] and found["sluice"]["safe-until"] > story._ts


def test_a_table_without_a_key_is_copied_where_nothing_tells_what_a_drainer_did(
    story: Story, config: Path, sluice: Run
) -> None:
    heap = story.create(
        table(12, "heap", "a int", "b int"), "CREATE TABLE `heap` (`a` int, `b` int)"
    )
    story.insert(heap, {"a": 1, "b": 1})
    apply(story, config)
    at = story._ts
    story.insert(heap, {"a": 2, "b": 2}, {"a": 1, "b": 1})
    assert "broke off" in sluice("takeover", "--copied", "d.heap", code=1).stderr
    with story.server.connect() as connection, connection.cursor() as cursor:
        leave_checkpoint(
            connection, at, cluster_id=story.cluster_id, sluice={"safe-until": story._ts}
        )
        forget(story._url)
        cursor.execute("INSERT INTO d.heap VALUES (2, 2)")
        with pytest.raises(
            ApplyError,
            match=(
                rf"d.heap has no key.*tidb_snapshot = '{at}'; SELECT `a`, `b`, COUNT.*sluice"
                r" takeover --copied d.heap"
            ),
        ):
            apply(story, config)
        cursor.execute("DELETE FROM d.heap")
        cursor.execute("INSERT INTO d.heap VALUES (1, 1)")  # what the snapshot has
        for wrong in ("d.item", "d.nowhere"):
            assert wrong in sluice("takeover", "--copied", wrong, code=1).stderr
        assert f"copied at {at}" in sluice("takeover", "--copied", "d.heap").stdout
        apply(story, config)
        assert story.rows("heap") == [(1, 1), (1, 1), (2, 2)]
        assert set(read_checkpoint(connection)["sluice"]) == {"owner", "process"}


def test_an_order_that_is_given_during_a_takeover_counts(
    story: Story, config: Path, sluice: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for before it is over with it: here, that all waits."""
    apply(story, config)
    sluice("handover", "--to-drainer")
    relay, watch = RelayLog.open(story._url), takeover._await_unmoved_checkpoint
    assert relay.control() == Control(land_paused=True, apply_paused=True)

    def ordered(*words: Any) -> Any:
        found = watch(*words)
        operate.run_until(load_settings(config), story._ts + 5)
        return found

    monkeypatch.setattr(takeover, "_await_unmoved_checkpoint", ordered)
    assert "waits where it was asked to" in sluice("takeover").stdout
    assert relay.control() == Control(apply_until_ts=story._ts + 5)


@pytest.mark.parametrize("command", ["takeover", "handover"])
def test_an_order_at_the_same_moment_is_not_undone(
    story: Story, config: Path, sluice: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It is written after the orders were read that are about to be changed."""
    apply(story, config)
    relay, settings, at = RelayLog.open(story._url), load_settings(config), story._ts + 5
    create, given = LocalStorage.create, []

    def late(storage: LocalStorage, path: str, data: bytes) -> None:
        if path.startswith("control/") and b'"apply_paused": true' not in data and not given:
            given.append(path)
            operate.pause(settings, operate.LAND)
        create(storage, path, data)

    if command == "takeover":
        relay.stop(StopMark("there was another writer", 1))
        operate.run_until(settings, at)
        monkeypatch.setattr(LocalStorage, "create", late)
        sluice("takeover")
        assert given and relay.control() == Control(land_paused=True)
    else:
        leave_flight(story, config, story._ts, at)
        monkeypatch.setattr("sluice.etl.operate.handover._IDLE_WAIT_S", 0.1)
        monkeypatch.setattr(LocalStorage, "create", late)
        sluice("handover", "--to-drainer", "--wait", 1, code=1)
        assert given and relay.control() == Control(land_paused=True, apply_until_ts=at)


def test_an_order_says_which_pipeline_it_is_for_and_asks_when_several_could_be_meant(
    story: Story, config: Path, sluice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sluice("pause").stderr.splitlines()[0]
    for part in (
        "TiDB at http://",
        f"127.0.0.1:{story.server.port}",
        story._url,
        str(config),
        "SLUICE_CONFIG",
    ):
        assert part in first
    sluice("resume")
    home = tmp_path / "home"
    home.mkdir()
    (home / "sluice.toml").write_text(config.read_text().replace("tidb_binlog", "x"))
    assert str(config) in sluice("pause").stderr.splitlines()[0]  # what is set by hand wins
    sluice("resume")
    monkeypatch.delenv("SLUICE_CONFIG")
    monkeypatch.setenv("SLUICE_PIPELINES", str(config.parent))
    other = config.with_name("other.toml")
    other.write_text(config.read_text().replace("tidb_binlog", "x"))
    asked = sluice("pause", code=2).stderr
    other.unlink()
    monkeypatch.delenv("SLUICE_PIPELINES")
    assert "--pipeline sluice" in asked and "--pipeline other" in asked
    assert RelayLog.open(story._url).control() == Control()
    assert str(config) in sluice("pause", "--config", config).stderr
    forget(story._url)
    assert str(home / "sluice.toml") in sluice("resume").stderr


@pytest.fixture
def sluice(config: Path) -> Run:
    return run
