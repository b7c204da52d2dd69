"""A task waits until a pipeline is complete through a moment, and no longer."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from hypothesis import given
from hypothesis import strategies as st

from sluice.airflow import SluiceCompletedTrigger, SluiceReached, SluiceReachedTrigger
from sluice.airflow.calls import why_stopped
from sluice.airflow.waiting import Progress, SluiceStoppedTrigger
from sluice.etl.settings.pipelines import pipelines
from sluice.relay import Failure
from sluice.relay.archive import Archive
from sluice.tidb import tso
from sluice.tidb.moments import parse_moment
from tests.sluice_airflow.conftest import archived_segment

MIDNIGHT = "2026-11-22T00:00:00+00:00"


class Store:
    """The watched asset's state store, which Airflow keeps in its database."""

    def __init__(self):
        self.values = {}

    async def aget(self, key):
        return self.values.get(key)

    async def aset(self, key, value):
        self.values[key] = value


def sensor(**options):
    return SluiceReached(task_id="replica", **{"pipeline": "shop", "moment": MIDNIGHT} | options)


def events(trigger, count):
    async def take():
        found = []
        async for event in trigger.run():
            found.append(event.payload)
            if len(found) == count:
                break
        return found

    return asyncio.run(take())


@pytest.mark.slow
def test_importing_the_sensor_loads_nothing_of_the_pipeline():
    script = (
        "import sys, airflow.sdk, airflow.triggers.base\n"
        "before = set(sys.modules)\n"
        "from sluice.airflow import SluiceReached\n"
        "loaded = set(sys.modules) - before\n"
        "assert not {'pyspark', 'pyarrow', 'pandas', 'grpc', 'pymysql'} & loaded, loaded\n"
        "assert not [name for name in loaded if name.startswith('sluice.relay')]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_moment_is_reached_once_every_commit_of_its_millisecond_is_downstream(shop):
    ts = shop.move_checkpoint(MIDNIGHT)
    assert sensor().poke({})
    shop.move_checkpoint(str(ts - 1))
    assert not sensor().poke({})
    assert sensor(moment=str(ts - 1)).poke({})


def test_before_a_bootstrap_a_task_waits(shop):
    assert not sensor().poke({})


def test_a_reached_moment_ends_the_task_without_a_trigger(shop):
    shop.move_checkpoint(MIDNIGHT)
    assert sensor().execute({}) is None


def test_a_waiting_task_gives_its_slot_back_and_its_trigger_is_made_again_from_what_it_says(shop):
    shop.move_checkpoint("2026-11-21T23:59:59Z")
    with pytest.raises(TaskDeferred) as deferred:
        sensor(poke_interval=0.01, timeout=600).execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "sluice.airflow.waiting.SluiceReachedTrigger"
    assert deferred.value.timeout.total_seconds() == 600
    again = SluiceReachedTrigger(**arguments)
    ts = shop.move_checkpoint("2026-11-22T00:00:01Z")
    assert events(again, 1) == [{"ts": ts}]
    sensor().on_reached({}, {"ts": ts})


def test_a_trigger_fires_no_sooner_than_the_checkpoint_is_there(shop, monkeypatch):
    """The downstream moves between two looks; the model is the list of what was seen."""
    shown = ["2026-11-21T22:00:00Z", "2026-11-21T23:59:59Z", "2026-11-22T00:00:00.500Z"]
    seen = []
    look = Progress.at_ts

    def moving(self):
        shop.move_checkpoint(shown[len(seen)])
        seen.append(look(self))
        return seen[-1]

    monkeypatch.setattr(Progress, "at_ts", moving)
    (event,) = events(SluiceReachedTrigger("shop", parse_moment(MIDNIGHT), poll_interval_s=0), 1)
    assert seen == [parse_moment(moment) for moment in shown] and event == {"ts": seen[-1]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipeline": "shoes"}, "no pipeline 'shoes'"),
        ({"moment": "soon"}, "neither a TSO"),
        ({"place": "cellar"}, "there are downstream and archive"),
    ],
)
def test_what_waiting_can_not_help_fails_the_task_at_once_without_retries(shop, options, said):
    shop.move_checkpoint(MIDNIGHT)
    with pytest.raises(AirflowFailException, match=said):
        sensor(**options).execute({})


def test_a_pipeline_that_is_taken_away_fails_the_tasks_that_wait_for_it(shop):
    trigger = SluiceReachedTrigger("shop", parse_moment(MIDNIGHT), poll_interval_s=0)
    (shop.pipelines / "shop.toml").unlink()
    (event,) = events(trigger, 1)
    with pytest.raises(AirflowFailException, match="no pipeline 'shop'"):
        sensor().on_reached({}, event)


def test_a_downstream_that_does_not_answer_is_waited_for(shop, capsys):
    (shop.folder / "out" / "savepoint").write_text("no savepoint")
    assert not sensor().poke({})
    assert "savepoint" in capsys.readouterr().out
    shop.move_checkpoint(MIDNIGHT)
    assert sensor().poke({})


def test_the_archive_is_waited_for_where_a_task_asks_for_it(shop):
    shop.move_checkpoint("2026-11-23T00:00:00Z")
    assert not sensor(place="archive").poke({})
    archive = Archive.open(f"file://{shop.folder}/log/archive")
    lo, hi = parse_moment("2026-11-20T00:00:00Z"), parse_moment(MIDNIGHT)
    archive.append(archived_segment(lo, hi))
    assert sensor(place="archive").poke({})
    assert not sensor(place="archive", moment=str(hi + 1)).poke({})


@given(
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    restarts=st.sets(st.integers(0, 7)),
    span=st.sampled_from([1, 24]),
)
def test_each_span_that_ends_fires_once_also_when_the_triggerer_is_started_again(
    steps, restarts, span
):
    """Hours pass between looks; the model counts the boundaries that lie between them."""
    hour = 3_600_000
    begin = tso.physical_ms(parse_moment("2026-11-22T05:00:00Z"))
    looks = [begin]
    for step in steps:
        looks.append(looks[-1] + step * hour)
    store, fired = Store(), []

    async def watch():
        trigger = None
        for number, at_ms in enumerate(looks):
            if trigger is None or number in restarts:
                trigger = SluiceCompletedTrigger("shop", f"{span}h")
                trigger.asset_state_store = store
            for from_ms in await trigger.new_spans(tso.compose(at_ms)):
                fired.append(from_ms)
                await trigger.mark(from_ms)

    asyncio.run(watch())
    wanted = range(begin // (span * hour), looks[-1] // (span * hour))
    assert fired == [number * span * hour for number in wanted]


def test_an_event_names_the_span_in_utc(shop, monkeypatch):
    shown = iter(["2026-11-21T23:59:59Z", "2026-11-23T00:00:00Z"])
    monkeypatch.setattr(Progress, "at_ts", lambda _: parse_moment(next(shown)))
    monkeypatch.setattr("sluice.airflow.waiting.EVENT_SPACING_S", 0)
    trigger = SluiceCompletedTrigger("shop", poll_interval_s=0)
    trigger.asset_state_store = Store()
    path, arguments = trigger.serialize()
    assert path.endswith(".SluiceCompletedTrigger") and arguments["every"] == "1d"
    days = ["2026-11-21T00:00:00+00:00", "2026-11-22T00:00:00+00:00", "2026-11-23T00:00:00+00:00"]
    assert events(trigger, 2) == [
        {"pipeline": "shop", "from": days[0], "until": days[1]},
        {"pipeline": "shop", "from": days[1], "until": days[2]},
    ]


class LookedEnough(Exception):
    """Ends a trigger that looks for ever."""


class ThreeLooks(SluiceStoppedTrigger):
    looks = 0

    def _why_stopped(self):
        self.looks += 1
        if self.looks > 3:
            raise LookedEnough
        return super()._why_stopped()


def test_each_stop_fires_once_also_behind_a_restart_and_only_while_it_lasts(shop):
    relay = pipelines()["shop"].settings.open_relay()
    store = Store()

    def fired():
        trigger, found = ThreeLooks("shop", poll_interval_s=0), []
        trigger.asset_state_store = store

        async def watch():
            async for event in trigger.run():
                found.append(event.payload)  # noqa: PERF401 # the look that raises must lose none

        with pytest.raises(LookedEnough):
            asyncio.run(watch())
        return found

    assert fired() == []
    relay.failures.note(Failure("apply", "row 7", "skip it", 1))
    assert fired() == [{"pipeline": "shop", "what": "apply"}]
    assert fired() == []
    relay.failures.note(Failure("land", "no pump", "start it", 2))
    assert fired() == [{"pipeline": "shop", "what": "land"}]
    relay.failures.note(again := Failure("land", "no pump", "start it", 3))
    relay.failures.answer(again)
    assert fired() == [], "an operator has acted, and the other one has fired"
    relay.failures.note(Failure("archive", "disk full", "make room", 4))
    assert fired() == []


def test_why_a_pipeline_has_stopped_names_the_refused_batch(shop, monkeypatch):
    pipeline = pipelines()["shop"]
    assert why_stopped(pipeline) is None
    pipeline.settings.open_relay().failures.note(Failure("apply", "row 7", "skip it", 1))
    expected = {"what": "apply", "message": "row 7", "hint": "skip it", "made_ms": 1}
    assert why_stopped(pipeline) == expected | {"refusal": ""}
    status = importlib.import_module("sluice.etl.operate.status")
    refused = SimpleNamespace(in_flight=SimpleNamespace(refused=SimpleNamespace(token="4f")))
    for found, refusal in ((refused, "4f"), (OSError("away"), "")):
        monkeypatch.setattr(status, "newest_checkpoint", lambda *_, it=found: it)
        assert why_stopped(pipeline) == expected | {"refusal": refusal}
