"""Two that write to the same downstream end with different rows: the pipeline doesn't begin, and
doesn't go on, beside another writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import OtherWriterError
from sluice.etl.downstream import CheckpointMovedError
from sluice.etl.downstream.ownership import PipelineIdentity, WriterExclusivity, downstream_name
from sluice.etl.downstream.sinks import DrainerTakeover, open_sink
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.tidb import EtcdClient, NodeStatus, Registry
from sluice.tidb.tso import compose
from tests.etl.apply.test_safe_mode import leave_checkpoint, read_checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import ITEM, Story, with_item


@pytest.fixture
def registry(etcd_url: str) -> Iterator[Registry]:
    with EtcdClient(etcd_url, timeout_s=60) as etcd:
        yield Registry(etcd)


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return with_item(mariadb, tmp_path)


@pytest.fixture
def settings(story: Story, etcd_url: str) -> Settings:
    return Settings(Upstream(etcd_url), Relay(story._url), story.server.downstream)


def drainer(state: str, name: str = "drainer-1:8249", **more) -> NodeStatus:
    return NodeStatus(
        name, "10.0.0.1:8249", state, update_ts=compose(time.time_ns() // 1_000_000), **more
    )


def apply(story: Story, settings: Settings) -> None:
    run_apply(settings, until_ts=story._ts, run_seconds=240, prepare=local_preparer(settings))


def test_a_pipeline_does_not_begin_while_a_drainer_is_online_and_begins_when_it_is_not(
    story: Story, settings: Settings, registry: Registry
) -> None:
    for state in ("online", "pausing", "closing"):
        registry.update_drainer(drainer(state))
        with pytest.raises(
            OtherWriterError,
            match=(
                f"drainer drainer-1:8249 at 10.0.0.1:8249 is {state} .*unrelated-drainers.*sluice"
                " drainers pause drainer-1:8249"
            ),
        ):
            apply(story, settings)
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        assert not {"d", "tidb_binlog"} & {name for (name,) in cursor.fetchall()}
    registry.update_drainer(drainer("paused"))
    apply(story, settings)
    assert story.rows("item") == [(1, 1)]


def test_a_drainer_that_comes_online_stops_the_pipeline_and_it_stays_stopped_when_it_goes(
    story: Story, settings: Settings, registry: Registry
) -> None:
    apply(story, settings)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_apply(settings, run_seconds=240, prepare=local_preparer(settings))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    registry.update_drainer(drainer("online"))
    for number in itertools.count(100):
        if RelayLog.open(story._url).stopped() or not thread.is_alive():
            break
        story.insert(ITEM, {"id": number, "v": 1})
        time.sleep(0.02)
    thread.join(60)
    assert (
        isinstance(failures[0], OtherWriterError)
        and "sluice takeover" in str(failures[0])
        and "drainer-1:8249" in str(failures[0])
    )
    rows = story.rows("item")
    registry.update_drainer(drainer("offline"))
    story.insert(ITEM, {"id": 2, "v": 2})
    with pytest.raises(OtherWriterError, match="sluice takeover"):
        apply(story, settings)
    assert story.rows("item") == rows


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_checkpoint_that_a_drainer_moved_stops_the_pipeline_and_is_left_as_it_is(
    story: Story, settings: Settings, mode: str
) -> None:
    settings = dataclasses.replace(settings, apply=Apply(mode))
    apply(story, settings)
    at = story._ts
    story.insert(ITEM, {"id": 2, "v": 2})
    with story.server.connect() as connection:
        for consistent in (False, True):
            leave_checkpoint(
                connection, at, consistent=consistent
            )  # it may stand at the same place: the Drainer had nothing to do yet
            before = read_checkpoint(connection)
            for _ in range(2):
                with pytest.raises(
                    OtherWriterError,
                    match=(
                        f"127.0.0.1:{story.server.port}, checkpoint tidb_binlog.checkpoint.* at"
                        f" {at}.*a Drainer"
                    ),
                ):
                    apply(story, settings)
            assert read_checkpoint(connection) == before
    assert story.rows("item") == [(1, 1)]


def test_a_checkpoint_that_is_taken_over_names_the_pipeline_from_the_first_write_on(
    story: Story, settings: Settings
) -> None:
    with story.server.connect() as connection:
        apply(story, settings)
        owner = read_checkpoint(connection)["sluice"]["owner"]
        assert owner == RelayLog.open(story._url).ownership().pipeline
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM tidb_binlog.checkpoint")
        with pytest.raises(OtherWriterError, match="checkpoint that this pipeline wrote is gone"):
            apply(story, settings)


def test_who_stood_still_while_another_process_began_the_pipeline_goes_on_under_its_name(
    story: Story, settings: Settings
) -> None:
    relay = RelayLog.open(settings.relay.url)
    with contextlib.closing(
        WriterExclusivity(PipelineIdentity.from_settings(settings), settings.upstream, relay)
    ) as late:
        apply(story, settings)
        first = relay.first()
        assert first is not None
        with contextlib.closing(open_sink(settings, first.cluster_id)) as sink:
            assert isinstance(sink, DrainerTakeover)
            sink.set_guard(late)
            sink.recover()
    story.insert(ITEM, {"id": 2, "v": 2})
    apply(story, settings)
    assert story.rows("item") == [(1, 1), (2, 2)]


def test_another_relay_log_does_not_take_a_pipelines_downstream(
    story: Story, settings: Settings, tmp_path: Path
) -> None:
    apply(story, settings)
    other = Story(story.server, tmp_path / "other")
    with pytest.raises(OtherWriterError, match=r"written by pipeline sluice-.*sluice takeover"):
        other.apply()
    moved = dataclasses.replace(
        settings,
        downstream=dataclasses.replace(settings.downstream, checkpoint_schema="tidb_binlgo"),
    )
    with pytest.raises(
        OtherWriterError,
        match=(
            r"applied to .* tidb_binlog.checkpoint so far, and sluice.toml now names .*tidb_binlgo"
        ),
    ):
        apply(story, moved)
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        assert "tidb_binlgo" not in {name for (name,) in cursor.fetchall()}


def test_who_writes_elsewhere_is_no_other_writer(
    story: Story, settings: Settings, registry: Registry
) -> None:
    registry.update_drainer(drainer("online", "kafka:8249"))
    registry.update_drainer(
        drainer(
            "online",
            "sluice-2",
            label={"sluice": "file:///other", "downstream": "other:3306, checkpoint a.b"},
        )
    )
    settings = dataclasses.replace(
        settings, upstream=dataclasses.replace(settings.upstream, unrelated_drainers=["kafka:8249"])
    )
    apply(story, settings)
    assert story.rows("item") == [(1, 1)]
    registry.update_drainer(
        drainer(
            "online",
            "sluice-3",
            label={"sluice": "file:///other", "downstream": downstream_name(settings.target)},
        )
    )
    with pytest.raises(OtherWriterError, match="sluice-3"):
        apply(story, settings)


def test_a_checkpoint_of_a_drainer_that_may_still_run_waits_for_the_registry(
    story: Story, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, failures, after = threading.Event(), itertools.count(1), RetryBackoff.after

    def counted(*arguments: Any) -> float:
        if next(failures) == 2:
            stop.set()
        return after(*arguments)

    monkeypatch.setattr(RetryBackoff, "after", counted)
    with story.server.connect() as connection:
        leave_checkpoint(connection, story._ts - 20)
        alone = dataclasses.replace(settings, upstream=Upstream("http://127.0.0.1:1"))
        summary = run_apply(alone, run_seconds=240, stop=stop, prepare=local_preparer(alone))
        assert summary.retries and not summary.batches
        assert "sluice" not in read_checkpoint(connection)


def test_that_the_registry_does_not_answer_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(Upstream("http://127.0.0.1:9"), Relay(tmp_path.as_uri()), Downstream())
    with contextlib.closing(
        WriterExclusivity(
            PipelineIdentity.from_settings(settings),
            settings.upstream,
            RelayLog.open(settings.relay.url),
        )
    ) as sole:
        for _ in range(3):
            sole._check_registry()
    assert [
        record.message.split(";")[0] for record in caplog.records if "registry" in record.message
    ] == ["the registry does not answer whether a Drainer runs"]


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_drainer_that_writes_the_checkpoint_beside_a_running_pipeline_stops_it(
    story: Story, settings: Settings, mode: str
) -> None:
    """Nothing tells of it but the row: the Drainer is one that the settings call unrelated."""
    settings = dataclasses.replace(settings, apply=Apply(mode))
    apply(story, settings)
    at, ended = story._ts, threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_apply(settings, run_seconds=240, prepare=local_preparer(settings))
        except BaseException as error:
            failures.append(error)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    with story.server.connect() as connection:
        story.insert(ITEM, {"id": 2, "v": 2})
        while (2, 2) not in story.rows("item"):
            assert not ended.wait(0.02)
        leave_checkpoint(connection, at)
        left = read_checkpoint(connection)
        story.insert(ITEM, {"id": 3, "v": 3})
        thread.join(60)
        assert isinstance(failures[0], CheckpointMovedError) and "a Drainer" in str(failures[0])
        with pytest.raises(OtherWriterError):
            apply(story, settings)
        assert read_checkpoint(connection) == left and story.rows("item") == [(1, 1), (2, 2)]
