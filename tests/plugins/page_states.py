"""Pipelines in the states that a person meets in front of the pages, for pictures of them.

Each is a real one: a relay log and an archive in a folder, a MariaDB, and an etcd with PD's calls
in front of it. The pages' own application answers; only Airflow's part, who may do what, is given.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient

from sluice.bench import pages as large
from sluice.errors import SluiceError
from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.settings import Apply, Relay, Settings, Upstream, load_settings
from sluice.pages.app import create_app
from sluice.pages.protocol import CALLER_HEADER, KINDS, Caller
from sluice.relay import DELETE, INSERT, UPDATE, Failure, RelayLog
from sluice.relay.archive import Archive
from sluice.relay.jobs import (
    DONE,
    FAILED,
    PAUSE,
    PAUSED,
    JobCounts,
    Jobs,
    Runner,
    TableProgress,
    WriteScope,
)
from sluice.relay.measures import (
    LAND,
    CounterDocument,
    CounterStore,
    StateHistory,
    StateSample,
    TableCount,
    source_of,
)
from sluice.relay.measures.points import LagStep
from sluice.relay.quality import FailedExpectation, QualityRun, QualityRuns
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb import EtcdClient, NodeStatus, Registry, tso
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.bad_night import CONFIG, TABLES
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table
from tests.plugins.drawing import Answer
from tests.pump_service.pumpkit import PD
from tests.tidb.etcd_fixture import EtcdProcess

HOUR_MS = 3_600_000
AWAY = "http://127.0.0.1:1"
CLUSTER_ID = 7
FEW_HOURS = 12


@dataclass(frozen=True)
class Place:
    """The servers that states share, and a folder of the state's own."""

    folder: Path
    mariadb: MariaDBServer
    etcd: EtcdProcess
    closing: ExitStack
    pd: PD = field(init=False)

    def __post_init__(self) -> None:
        pd = PD(int(self.etcd.url.rpartition(":")[2]), CLUSTER_ID)
        self.closing.callback(pd.stop)
        object.__setattr__(self, "pd", pd)

    def pump(self, name: str, state: str = "online", behind_ms: int = -HOUR_MS) -> None:
        """Register a pump; one ahead of the clock is in time however slow the machine is."""
        with EtcdClient(self.etcd.url, timeout_s=60) as etcd:
            at = NodeStatus(name, f"{name}.internal:8250", state, max_commit_ts=ago(behind_ms))
            Registry(etcd).register_pump(at)

    def write_config(self, relay_url: str) -> Path:
        config = self.folder / "sluice.toml"
        written = CONFIG.format(self.mariadb.downstream, relay_url)
        config.write_text(written.replace(AWAY, self.pd.url))
        return config


@dataclass(frozen=True)
class State:
    """A pipeline's settings' file, and what pages of it can be about."""

    config: Path
    at: int = 0
    """A transaction's commit ts."""
    last: int = 0
    job: str = ""
    rights: tuple[str, ...] = KINDS
    """The kinds of DAGs that whoever looks may trigger."""
    rows: bool = True
    is_refused: bool = False
    """Whether answers may have a status of errors."""


def ago(ms: float) -> int:
    """Return the TSO of so many ms before now."""
    return tso.compose(time.time_ns() // 1_000_000 - int(ms))


@contextmanager
def answering(state: State) -> Iterator[Answer]:
    """Have the pages' application answer for this pipeline."""
    caller = Caller("ann", "", state.rows, state.rights)
    dags = {kind: {"id": f"sluice_{kind}", "may": kind in state.rights} for kind in KINDS}
    context = {"user": "ann", "pipeline": "", "pipelines": [{"name": "", "title": "(sluice.toml)"}]}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SLUICE_CONFIG", str(state.config))
        environment.delenv("SLUICE_PIPELINES", raising=False)
        with TestClient(create_app(), headers={CALLER_HEADER: caller.to_header()}) as client:

            def answer(path: str, order: Any) -> tuple[int, bytes]:
                if path.startswith("context?"):
                    document = context | {"problems": [], "rows": state.rows, "dags": dags}
                    return 200, json.dumps(document).encode()
                method = "GET" if order is None else "POST"
                found = client.request(method, f"/{path}", json=order)
                return found.status_code, found.content

            yield answer


@contextmanager
def standing(
    name: str, mariadb: MariaDBServer, folders: pytest.TempPathFactory
) -> Iterator[tuple[State, Answer]]:
    """Make the state of that name; give it with what answers in it."""
    mariadb.empty()
    with ExitStack() as closing:
        etcd = EtcdProcess(folders.mktemp("etcd"))
        etcd.start()
        closing.callback(etcd.kill)
        state = STATES[name](Place(folders.mktemp("pipeline"), mariadb, etcd, closing))
        yield state, closing.enter_context(answering(state))


# The states


def empty(place: Place) -> State:
    """Return a pipeline of which everything answers, and nothing is landed yet."""
    place.pump("pump-1")
    place.pump("pump-2")
    config = place.write_config(f"file://{place.folder}/relay")
    return State(config, at=ago(HOUR_MS), is_refused=True)


def busy(place: Place) -> State:
    """Return a pipeline with a day behind it: traffic, DDL, jobs of all states, an archive."""
    story = Story(place.mariadb, place.folder)
    story._ts = ago(HOUR_MS)
    account, at = _told(story)
    story._ts += tso.span(50 * 60_000)
    story.update(account, {"id": 3, "owner": "owner 3", "note": None}, {"note": "x" * 4_000})
    story.idle(ago(-HOUR_MS))  # in time however slow the machine is
    config = place.write_config(story.url)
    for name in ("pump-1", "pump-2"):
        place.pump(name)
    settings = load_settings(config)
    relay = settings.open_relay()
    _measure(relay, settings.downstream_name, story.now)
    story.apply()
    _verify(relay, story.now, {})
    _check_quality(relay)
    archive = Archive.open(settings.archive_url)
    large.write_archive(archive, ago(HOUR_MS + 60_000), FEW_HOURS, tables=40)
    job = _run_jobs(Jobs.for_pipeline(relay), place.closing)
    return State(config, at, story.now, job)


def _told(story: Story) -> tuple[Table, int]:
    """Tell of tables and rows; return a table, and the commit ts of a transaction of many kinds."""
    made = {}
    for number, full in enumerate(TABLES, 11):
        name = full.partition(".")[2]
        spec = ("id int", "owner varchar(20)", "note longtext")
        made[name] = table(number, name, *spec, primary="id")
        text = f"CREATE TABLE `{name}` (`id` int PRIMARY KEY, `owner` varchar(20), `note` longtext)"
        story.create(made[name], text)
        rows = [{"id": n, "owner": f"owner {n}", "note": None} for n in range(60)]
        story.insert(made[name], *rows)
        story._ts += tso.span(2 * 60_000)
    account, ledger = made["account"], made["ledger"]
    old = {"id": 1, "owner": "owner 1", "note": None}
    story.changes(
        (account, UPDATE, encode_update(account, old, old | {"owner": "Zoë Ångström", "note": ""})),
        (account, DELETE, encode_delete(account, {"id": 2, "owner": "owner 2", "note": None})),
        (
            ledger,
            INSERT,
            encode_insert(ledger, {"id": 99, "owner": "new", "note": "first\nsecond"}),
        ),
    )
    return account, story.now


def refused(place: Place) -> State:
    """Return a pipeline that the downstream refused a change of, with a hole in its archive."""
    story = Story(place.mariadb, place.folder)
    story._ts = ago(HOUR_MS)
    unique = table(11, "item", "id int", "name varchar(20)", primary="id", unique=("name",))
    story.create(unique, "CREATE TABLE `item` (`id` int primary key, `name` varchar(20) unique)")
    story.insert(unique, {"id": 1, "name": "a"}, {"id": 7, "name": "g"})
    story.apply()
    # the index is being dropped upstream: delete-only there, but still in the way downstream
    was = table(11, "item", "id int", "name varchar(20)", primary="id")
    story._tables[11] = was
    story.insert(was, {"id": 2, "name": "a"})
    at = story._ts
    story.delete(was, {"id": 7, "name": "g"})
    chosen = Settings(
        Upstream("unused"),
        Relay(story.url),
        place.mariadb.downstream,
        apply=Apply("parallel", 3, 10_000),
    )
    config = place.write_config(story.url)
    settings = load_settings(config)
    relay = settings.open_relay()
    _measure(relay, settings.downstream_name, story._ts, errors=3)
    try:
        run_apply(chosen, until_ts=story._ts, run_seconds=240, prepare=local_preparer(chosen))
    except ApplyError as error:
        assert isinstance(error, SluiceError)
        now_ms = time.time_ns() // 1_000_000
        relay.failures.note(Failure("apply", str(error), error.hint, now_ms))
    place.pump("pump-1", "paused", behind_ms=HOUR_MS)
    _verify(relay, story._ts, {"d.account": 12, "d.ledger": 1}, "d.visit")
    _check_quality(relay, "failed")
    archive = Archive.open(settings.archive_url)
    large.write_archive(archive, ago(HOUR_MS + 60_000), FEW_HOURS, tables=40)
    archive.storage.remove("log/7.windows")
    _fail_drill(Jobs.for_pipeline(relay))
    return State(config, at, story._ts, is_refused=True)


def unreachable(place: Place) -> State:
    """Return a pipeline with a day behind it, of which neither side answers now."""
    state = busy(place)
    settings = load_settings(state.config)
    text = state.config.read_text().replace(place.pd.url, AWAY)
    text = text.replace(f"port = {place.mariadb.downstream.port}", "port = 1")
    state.config.write_text(text)
    name = load_settings(state.config).downstream_name
    _measure(settings.open_relay(), name, state.last)
    return state


def viewer(place: Place) -> State:
    """Return a pipeline with a day behind it, as seen by somebody who may do nothing, nor see
    what rows hold.
    """
    state = busy(place)
    return State(
        state.config, state.at, state.last, state.job, rights=(), rows=False, is_refused=True
    )


def crowded(place: Place) -> State:
    """Return a pipeline with 10,000 tables, 200 jobs, and a DDL every few minutes."""
    with patch.object(large, "WINDOWS", 2_000):
        config = large.large_pipeline(place.folder)
    settings = load_settings(config)
    last = settings.open_relay().last()
    assert last is not None
    _measure(settings.open_relay(), settings.downstream_name, last.hi, ddls=4)
    return State(config, last.hi, last.hi, f"backfill-{large.JOBS}")


def unusable(place: Place) -> State:
    """Return a pipeline whose settings' file can't be read."""
    config = place.folder / "sluice.toml"
    config.write_text('[upstream]\npd-urls = "http://pd:2379"\n[relay]\nurl = "/relay"\nkep = 3\n')
    return State(config, is_refused=True)


STATES: dict[str, Callable[[Place], State]] = {
    each.__name__: each for each in (empty, busy, refused, unreachable, viewer, crowded, unusable)
}


# Their parts


def _measure(relay: RelayLog, downstream: str, last: int, errors: int = 0, ddls: int = 0) -> None:
    """Write what the tasks would have counted in a day."""
    now_ms = time.time_ns() // 1_000_000
    store = CounterStore(relay)
    for source in (LAND, source_of(downstream)):
        day = tuple(
            LagStep(
                now_ms - back * 300_000,
                300_000,
                800 + 600 * math.sin(back / 9) ** 2 + 9_000 * (back == 100),
                60_000 + 30_000 * (back % 12),
                9_000,
                300,
                errors * (back < 4),
                ddls or 3 * (source == LAND and back == 60),
            )
            for back in range(280, 12, -1)
        )
        hour = tuple(
            LagStep(
                now_ms - back * 10_000, 10_000, 500 + 9 * (back % 40), 400 + back, 90, 9,
                errors * (back < 9), ddls or (source == LAND and back == 180),
            )
            for back in range(359, -1, -1)
        )  # fmt: skip
        document = CounterDocument(
            {"changes": 3_600_000, "windows": 90_000}, at_ts=last, since_ms=day[0].at_ms,
            noted_ms=now_ms, hour=(*day, *hour),
        )  # fmt: skip
        store.note(source, document, "a test", 1)
    counts = {
        name: TableCount(
            61 * (n + 1) ** 7, 13 * n, 60, last, now_ms,
            tuple((now_ms // HOUR_MS - back, (back * 7 + n) % 23) for back in range(23, -1, -1)),
        )
        for n, name in enumerate([*TABLES, "d.item"])
    }  # fmt: skip
    store.add_tables(source_of(downstream), counts, "a test", 1)
    for back in range(96, -1, -1):
        at_ms = now_ms - back * 900_000
        StateHistory(relay).note(StateSample(at_ms, (200 - back) * 900_000, (back % 30) * 900_000))


def _verify(relay: RelayLog, ts: int, differing: dict[str, int], problem: str = "") -> None:
    at_ms = time.time_ns() // 1_000_000 - 20 * 60_000
    verified = tuple(
        TableVerified(
            name, ts, at_ms, 12_345_678, 987_654_321, differing.get(name, 0), "upstream",
            "verify-1", "TiDB doesn't answer at tidb.internal:4000" if name == problem else "",
        )
        for name in TABLES
    )  # fmt: skip
    Verifications(relay).note(VerifiedRun("verify-1", ts, at_ms, 1.0, "upstream", verified))


def _check_quality(relay: RelayLog, newest: str = "passed") -> None:
    now_ms = time.time_ns() // 1_000_000
    for back in range(24, -1, -1):
        at_ms, run = now_ms - back * HOUR_MS, f"{now_ms - back * HOUR_MS}-0123456789ab"
        state = newest if not back else "warned" if back == 9 else "passed"
        failures = () if state == "passed" else (_FAILED_EXPECTATION,)
        suites = [
            QualityRun(
                f"{back}-{name}", at_ms, name, "downstream", state if not n else "passed", 8,
                len(failures) if not n else 0, "fail" if failures and not n else "", 1.5, run,
                failures=failures if not n else (),
            )
            for n, name in enumerate(TABLES)
        ]  # fmt: skip
        QualityRuns(relay.storage).note(run, suites, 100)


_FAILED_EXPECTATION = FailedExpectation(
    "expect_column_values_to_be_between", "owner", "fail", "17 of 12,345 values are above 100,000"
)


def _progress(rows: int, of: int) -> TableProgress:
    return TableProgress(JobCounts(rows, rows * 90, rows // 100), of * 90, of // 100, of)


def _run_jobs(jobs: Jobs, closing: ExitStack) -> str:
    """Run one job of each state; return the id of the one that runs on."""
    done = _job(jobs, "snapshot", "e", "airflow scheduled__2026-11-28T00:00:00+00:00")
    with done.run(Runner("sluice snapshot")) as run:
        run.set_totals({name: _progress(0, 60_000) for name in TABLES})
        for name in TABLES:
            run.did(name, JobCounts(60_000, 5_400_000, 600))
        run.end(DONE, result={"tables": 3, "bytes": 16_200_000})
    failed = _job(jobs, "restore", "d", "airflow uma")
    with failed.run(Runner("airflow task restore on worker-2.internal")) as run:
        run.set_totals({"d.ledger": _progress(0, 60_000)})
        run.did("d.ledger", JobCounts(20_000, 1_800_000, 200))
        message = 'the disk of `/var/lib/mysql` is full (errno: 28 "No space left on device")'
        run.end(FAILED, message=message, hint="make room, then `sluice jobs resume`")
    paused = _job(jobs, "backfill", "c", "ann")
    with paused.run(Runner("sluice backfill")) as run:
        run.set_totals({"d.account": _progress(0, 90_000_000)})
        run.did("d.account", JobCounts(31_000_000, 2_790_000_000, 310_000))
        paused.order(PAUSE, "airflow ann")
        run.look()
        run.end(PAUSED)
    _job(jobs, "verify", "a", "ann")
    running = _job(jobs, "bootstrap", "b", "airflow manual__2026-11-28T21:00:00.123456+00:00")
    run = closing.enter_context(running.run(Runner("airflow task bootstrap on worker-1.internal")))
    run.set_totals({f"d.t{n}": _progress(0, 1_000_000 * (n + 1)) for n in range(30)})
    for n in range(12):
        run.did(f"d.t{n}", JobCounts(900_000, 81_000_000, 9_000))
    run.doing("d.t12")
    return str(running.id)


def _job(jobs: Jobs, kind: str, where: str, by: str) -> Any:
    touches = WriteScope(where, tuple(TABLES))
    return jobs.create(kind, {"tables": ["d.*"], "where": "", "mode": "replace"}, touches, by)


def _fail_drill(jobs: Jobs) -> None:
    drill = jobs.create("drill", {}, WriteScope("drill", ("d.*",)), "airflow scheduled__1")
    with drill.run(Runner("airflow task drill")) as run:
        message = "log/7.windows is missing: nothing between its ends can be restored"
        run.end(FAILED, message=message, hint="`sluice archive check`")
