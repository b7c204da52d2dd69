"""One look tells how replication stands and what holds it back, whoever doesn't answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.etl import operate
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.operate.overview import (
    IDLE,
    PAUSED,
    STOPPED,
    UNKNOWN,
    WAITING,
    WORKING,
    KnownCheckpoint,
    Overview,
    known_checkpoint,
)
from sluice.etl.operate.overview import overview as look
from sluice.etl.settings import Downstream, Settings, Upstream, Window
from sluice.relay import Failure, RelayLog
from sluice.relay.jobs import Jobs, WriteScope
from sluice.relay.measures import CounterRecorder, CounterStore, source_of
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb import EtcdClient, NodeStatus, Registry, tso
from sluice.tidb.etcd import CAPTURED_LABEL, SHARE_LABEL
from tests.relay.relaykit import window


def overview(settings: Settings) -> Overview:
    return look(settings, patience_s=60.0)


def ago(milliseconds: int) -> int:
    return tso.compose(time.time_ns() // 1_000_000 - milliseconds)


@pytest.fixture
def registry(etcd_url: str) -> Iterator[Registry]:
    with EtcdClient(etcd_url, timeout_s=60) as etcd:
        yield Registry(etcd)


@pytest.fixture
def settings(files_settings: Settings) -> Settings:
    return files_settings


@pytest.fixture
def relay(files_relay: RelayLog) -> RelayLog:
    return files_relay


def checkpoint_at(settings: Settings, ts: int) -> None:
    Path(settings.file.dir, "savepoint").write_text(f"commitTS = {ts}\n")


def landed(relay: RelayLog, lo: int, hi: int) -> None:
    relay.commit(window(lo, hi, landed_ms=time.time_ns() // 1_000_000))


def pump(registry: Registry, name: str, state: str = "online", behind_ms: int = 0) -> None:
    registry.register_pump(NodeStatus(name, f"{name}:8250", state, max_commit_ts=ago(behind_ms)))


def test_a_pipeline_that_works_is_shown_with_its_pumps_lag_pace_and_nothing_in_its_way(
    settings: Settings, relay: RelayLog, registry: Registry
) -> None:
    pump(registry, "p1", behind_ms=-3_600_000)  # however slow this machine is
    settings = dataclasses.replace(settings, window=Window(idle_interval_ms=3_600_000))
    landed(relay, ago(9_000), hi := ago(2_000))
    checkpoint_at(settings, hi)
    process = CounterRecorder(
        CounterStore(relay), source_of(downstream_name(settings.target)), every_s=3600
    )
    process.at(hi)
    process.count({"changes": 500, "transactions": 50})
    process.close()
    seen = overview(settings)
    assert seen.held_back == ()
    assert seen.errors == {}
    assert [each.state for each in (*seen.pumps, seen.landing, seen.relay, seen.downstream)] == [
        WORKING
    ] * 4
    assert seen.downstream.at_ts == hi
    assert seen.lag_ms is not None
    assert seen.lag_ms >= 2_000
    assert seen.downstream.changes_per_s == pytest.approx(
        10 * seen.downstream.transactions_per_s, rel=0.1
    )
    assert seen.downstream.changes_per_s > 0
    assert seen.relay.waiting_ms == 0
    assert json.loads(json.dumps(seen.to_json()))["downstream"]["state"] == WORKING


def test_nothing_yet_is_no_error(settings: Settings, registry: Registry) -> None:
    pump(registry, "p1")
    seen = overview(settings)
    assert [each.state for each in (seen.landing, seen.relay, seen.archive, seen.downstream)] == [
        IDLE
    ] * 4
    assert seen.lag_ms is None
    assert seen.errors == {}
    assert seen.held_back == ()


def test_what_holds_it_back_is_said_in_words_the_gravest_first(
    settings: Settings, relay: RelayLog, registry: Registry
) -> None:
    pump(registry, "p1", "paused", behind_ms=500_000)
    pump(registry, "p2", "offline", behind_ms=10**8)
    landed(relay, ago(900_000), hi := ago(500_000))
    checkpoint_at(settings, hi - tso.span(100_000))
    operate.pause(settings, operate.LAND)
    relay.failures.note(Failure("apply", "table a.b: 1 row is missing", "copy it again", 1))
    Verifications(relay).note(
        VerifiedRun(
            "verify-1",
            hi,
            1,
            2.0,
            "upstream",
            (TableVerified("a.b", hi, 1, 10, 10, 3, "upstream", "verify-1"),),
        )
    )
    job = Jobs(relay.storage).create(
        "backfill", {}, WriteScope(downstream_name(settings.target), ("a.b",)), "ann"
    )
    seen = overview(settings)
    assert [pump.state for pump in seen.pumps] == [PAUSED, IDLE]
    assert (seen.landing.state, seen.downstream.state) == (PAUSED, STOPPED)
    assert seen.held_back[0].startswith(
        "apply has stopped: table a.b: 1 row is missing. Hint: copy it again"
    )
    rest = "\n".join(seen.held_back)
    assert "landing is paused; `sluice resume`" in rest
    assert "pump p1 (p1:8250) is paused" in rest
    assert "p2" not in rest
    assert "3 rows of a.b differ" in rest
    assert seen.relay.waiting_ms == 100_000
    assert [each["id"] for each in seen.jobs] == [job.id]
    assert (seen.verified.tables, seen.verified.differing, seen.verified.differences) == (
        1,
        ("a.b",),
        3,
    )


def test_a_hint_with_which_an_error_ends_is_given_once(settings: Settings, relay: RelayLog) -> None:
    relay.failures.note(Failure("apply", "the disk is full. Hint: make room", "make room", 1))
    assert overview(settings).held_back[0] == "apply has stopped: the disk is full. Hint: make room"


def test_what_does_not_get_on_waits_and_says_for_how_long(
    settings: Settings, relay: RelayLog, registry: Registry
) -> None:
    pump(registry, "p1", behind_ms=120_000)
    landed(relay, ago(900_000), hi := ago(120_000))
    checkpoint_at(settings, hi)
    seen = overview(settings)
    assert [each.state for each in (*seen.pumps, seen.landing, seen.downstream)] == [WAITING] * 3
    assert "pump p1 (p1:8250, online) is 2 min" in seen.held_back[0]
    assert seen.held_back[1].startswith("landing is 2 min")


@pytest.mark.slow
def test_who_does_not_answer_is_named_and_the_rest_is_shown(
    settings: Settings, relay: RelayLog
) -> None:
    landed(relay, ago(9_000), hi := ago(2_000))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as deaf:
        port = deaf.getsockname()[1]
        there = Downstream(host="127.0.0.1", port=port, connect_timeout_s=1)
        seen = overview(
            dataclasses.replace(
                settings, upstream=Upstream(f"http://127.0.0.1:{port}"), downstream=there
            )
        )
    assert seen.errors.keys() == {"upstream", "downstream"}
    assert (seen.downstream.state, seen.landing.state, seen.landing.at_ts) == (UNKNOWN, WORKING, hi)
    assert "the downstream doesn't answer" in "\n".join(seen.held_back)


def test_of_a_downstream_that_is_away_the_newest_that_is_known_is_shown(
    settings: Settings, relay: RelayLog
) -> None:
    landed(relay, ago(9_000), hi := ago(2_000))
    checkpoint_at(settings, first := hi - tso.span(5_000))
    assert overview(settings).downstream.at_ts == first
    savepoint = Path(settings.file.dir, "savepoint")
    savepoint.write_text("\0")
    seen = overview(settings)
    assert "downstream" in seen.errors
    assert (seen.downstream.state, seen.downstream.at_ts) == (UNKNOWN, first)
    assert seen.as_of_ms["downstream"] <= seen.silent_ms["downstream"] <= seen.at_ms
    assert known_checkpoint(settings, 60.0).at_ts == first
    process = CounterRecorder(
        CounterStore(relay), source_of(downstream_name(settings.target)), every_s=3600
    )
    process.at(hi)
    process.close()
    assert overview(settings).downstream.at_ts == hi  # who applies still gets there, and notes it
    checkpoint_at(settings, hi)
    seen = overview(settings)
    assert (seen.errors.keys(), seen.silent_ms.keys()) == (
        {"upstream"} & seen.errors.keys(),
        seen.errors.keys(),
    )
    assert known_checkpoint(settings, 60.0) == KnownCheckpoint(hi)


def test_of_a_relay_log_that_is_away_it_alone_is_named_and_the_newest_that_is_known_is_shown(
    settings: Settings, relay: RelayLog, registry: Registry, tmp_path: Path
) -> None:
    pump(registry, "p1")
    landed(relay, ago(9_000), hi := ago(2_000))
    checkpoint_at(settings, hi)
    assert overview(settings).errors == {}
    (tmp_path / "relay").rename(tmp_path / "away")
    (tmp_path / "relay").write_text("not a folder")
    seen = overview(settings)
    assert {"relay"} <= seen.errors.keys() <= {"relay", "archive"}
    assert (seen.landing.state, seen.landing.at_ts, seen.downstream.at_ts) == (UNKNOWN, hi, hi)
    assert "the relay log doesn't answer" in seen.held_back[0]


def test_a_share_of_the_tables_without_a_pump_is_named(
    settings: Settings, registry: Registry
) -> None:
    for number, state in ((1, "online"), (2, "online"), (3, "offline")):
        label = {CAPTURED_LABEL: "7", SHARE_LABEL: f"{number}/3"}
        ts = ago(-3_600_000)
        registry.register_pump(
            NodeStatus(f"p{number}", "h:1", state, label=label, max_commit_ts=ts)
        )
    seen = overview(settings)
    assert [each.share for each in seen.pumps] == ["1/3", "2/3", "3/3"]
    (line,) = (line for line in seen.held_back if "share" in line)
    assert line.startswith("share 3/3 of the tables has no pump")
