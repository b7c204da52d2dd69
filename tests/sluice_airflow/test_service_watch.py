"""The DAG's task that watches `sluice replicate` is green only while that gets on."""

from __future__ import annotations

import threading
import time

import pytest

from sluice.airflow import service_watch
from sluice.airflow.calls import CALLS
from sluice.airflow.service_watch import ReplicationStalledError, watch
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.relay import Control, Failure
from sluice.relay.service_lease import ServiceLease
from tests.sluice_airflow.conftest import shop_pipeline


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A pipeline with a checkpoint, whose service nobody runs yet."""
    found = shop_pipeline(tmp_path, more='[airflow]\nreplication = "service"\n')
    monkeypatch.setenv("SLUICE_PIPELINES", str(found.pipelines))
    monkeypatch.setattr(service_watch, "_POLL_INTERVAL_S", 0.01)
    found.move_checkpoint("2026-11-22T00:00:00Z")
    return NamedPipeline("shop", found.pipelines / "shop.toml")


def left(looks):
    """Time is left for so many looks."""
    times = iter([1.0] * 2 * looks)
    return lambda: next(times, 0.0)


def test_it_succeeds_while_a_process_renews_its_lease_and_names_it(shop):
    lease, over = ServiceLease(shop.settings.open_relay().place), threading.Event()
    assert lease.try_acquire()

    def renew():
        while not over.wait(0.01):
            lease.renew()

    (holder := threading.Thread(target=renew)).start()
    try:
        found = watch(shop, left(10))
    finally:
        over.set()
        holder.join()
    assert "process" in found["holder"] and found["checkpoint"] > 0


def test_it_ends_when_the_time_of_its_run_is_over(shop, monkeypatch):
    monkeypatch.setattr("sluice.etl.tasks.airflow_run.MIN_TASK_S", 0.1)
    done = threading.Event()

    def call():
        CALLS["watch_replication"](shop, run_seconds=300, began_s=time.time() - 299.9)
        done.set()

    threading.Thread(target=call, daemon=True).start()
    assert done.wait(60)


def test_it_fails_when_no_process_replicates(shop, monkeypatch):
    monkeypatch.setattr(service_watch, "_ABSENT_TIMEOUT_S", 0.0)
    with pytest.raises(ReplicationStalledError, match="no process replicates") as failed:
        watch(shop, left(1_000))
    assert "sluice replicate" in failed.value.hint


def test_it_fails_when_the_holder_no_longer_renews(shop, monkeypatch):
    monkeypatch.setattr(service_watch, "_ABSENT_TIMEOUT_S", 0.05)
    assert ServiceLease(shop.settings.open_relay().place).try_acquire()
    assert watch(shop, left(1))["holder"]
    monkeypatch.setattr(service_watch, "LEASE_TIMEOUT_S", 0.01)
    with pytest.raises(ReplicationStalledError, match="no process replicates"):
        watch(shop, left(1_000))


def test_it_fails_with_the_hint_when_an_operator_has_to_act(shop):
    relay = shop.settings.open_relay()
    failure = Failure("apply", "a row is missing", "bring it back", 7)
    relay.failures.note(failure)
    with pytest.raises(ReplicationStalledError, match="a row is missing") as failed:
        watch(shop, left(1))
    assert "bring it back" in failed.value.hint
    relay.failures.answer(failure)
    watch(shop, left(1))


def test_it_fails_when_the_downstream_stands_still_unless_it_is_paused(shop, monkeypatch):
    monkeypatch.setattr(service_watch, "_STALL_TIMEOUT_S", 0.0)
    relay = shop.settings.open_relay()

    class Last:
        hi = 1 << 62

    monkeypatch.setattr(type(relay), "last", lambda self: Last())
    relay.change_control(lambda _: Control(land_paused=False, apply_paused=True))
    watch(shop, left(3))
    relay.change_control(lambda _: Control(land_paused=False, apply_paused=False))
    with pytest.raises(ReplicationStalledError, match="stands still"):
        watch(shop, left(1_000))
