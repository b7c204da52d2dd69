"""Jobs: who may begin one, who runs it, what is heard and said meanwhile, and what stays of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    CANCELLING,
    DONE,
    FAILED,
    INTERRUPTED,
    PAUSE,
    PAUSED,
    PAUSING,
    PLANNED,
    RESUME,
    RUNNING,
    Job,
    JobCounts,
    JobError,
    JobOverlapError,
    JobRunsError,
    Jobs,
    LeaseLostError,
    Runner,
    StopRequested,
    TableProgress,
    WriteScope,
)
from sluice.relay.storage import LocalStorage
from sluice.relay.storage._object_store import ObjectStorage

HERE = "db:3306"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "relay", f"file://{tmp_path}/relay")


@pytest.fixture
def jobs(storage: LocalStorage) -> Jobs:
    return Jobs(storage)


def a_job(jobs: Jobs, *tables: str, kind: str = "backfill") -> Job:
    return jobs.create(kind, {"of": list(tables)}, WriteScope(HERE, tables or None), "ann")


def test_a_job_that_touches_what_another_touches_is_refused_and_told_of_it(jobs: Jobs) -> None:
    first = a_job(jobs, "d.a", "d.b")
    a_job(jobs, "d.c")
    with pytest.raises(JobOverlapError) as caught:
        a_job(jobs, "d.B", "d.x")
    said = str(caught.value)
    for part in (
        "d.b is touched by",
        first.id,
        "backfill of d.a, d.b",
        "asked for by ann",
        "UTC",
        "which is planned",
    ):
        assert part in said
    assert f"sluice jobs cancel {first.id}" in said
    with pytest.raises(JobOverlapError, match=r"d\.a, d\.b is touched by"):
        a_job(jobs)
    jobs.create("backfill", {}, WriteScope("elsewhere"), "ann")
    assert [job.id for job in jobs.overlapping(WriteScope(HERE, ("d.a", "d.c")))] == [
        "backfill",
        "backfill-2",
    ]


def test_what_a_job_touched_is_free_once_it_is_over_and_not_before(jobs: Jobs) -> None:
    job = a_job(jobs, "d.a")
    with job.run(Runner("a test")) as run:
        run.end(PAUSED)
    with pytest.raises(JobOverlapError, match="which is paused"):
        a_job(jobs, "d.a")
    with job.run(Runner("a test")) as run:
        run.end(FAILED, message="no room", hint="make some")
    with pytest.raises(JobOverlapError, match="which is failed"):
        a_job(jobs, "d.a")
    with job.run(Runner("a test")) as run:
        run.end(CANCELLED)
    assert a_job(jobs, "d.a").id == "backfill-2"


def test_the_open_job_that_is_found_is_the_oldest_of_its_kind_with_that_request(jobs: Jobs) -> None:
    over, other, first, second = (
        a_job(jobs, "shop.a", kind="verify"), a_job(jobs, "shop.b", kind="base"),
        a_job(jobs, "shop.c", kind="verify"), a_job(jobs, "shop.d", kind="verify"),
    )  # fmt: skip
    with over.run(Runner("test")) as run:
        run.end(DONE)
    second.save_plan({"kind": "verify"})

    def found(kind: str, *tables: str, planned: bool = False) -> str | None:
        job = jobs.find_open(kind, {"of": list(tables)} if tables else None, planned=planned)
        return job and job.id

    assert (found("verify"), found("base"), found("drill")) == (first.id, other.id, None)
    assert (found("verify", "shop.d"), found("verify", "shop.a")) == (second.id, None)
    assert (found("verify", planned=True), found("verify", "shop.c", planned=True)) == (
        second.id,
        None,
    )


@pytest.mark.parametrize("order", [PAUSE, CANCEL])
def test_an_order_ends_a_run_where_it_looks_for_one(jobs: Jobs, order: str) -> None:
    job = a_job(jobs)
    with job.run(Runner("test")) as run:
        run.check_order()
        assert run.should_continue()
        job.order(order, "ann")
        run.look()
        assert not run.should_continue()
        with pytest.raises(StopRequested) as stop:
            run.check_order()
        assert stop.value.order == order
        run.end(PAUSED if order == PAUSE else CANCELLED)


def test_a_process_that_died_before_it_could_say_so_stands_in_nobodys_way(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(jobs, "d.a")
    with job.run(Runner("a test")) as run:
        monkeypatch.setattr(run._files, "settle", lambda entry: None)
        run.end(DONE)
    assert a_job(jobs, "d.a").id == "backfill-2"
    assert [each.status().state for each in jobs.list()] == [DONE, PLANNED]


def test_ids_are_readable_and_never_used_again(jobs: Jobs) -> None:
    assert a_job(jobs, kind="bootstrap").id == "bootstrap"
    with jobs.get("bootstrap").run(Runner("a test")) as run:
        run.end(DONE)
    jobs.forget("bootstrap")
    assert jobs.find("bootstrap") is None and jobs.list() == []
    assert a_job(jobs, kind="bootstrap").id == "bootstrap-2"


CREATOR = """
import sys
from sluice.relay.jobs import JobOverlapError, Jobs, WriteScope
from sluice.relay.storage import LocalStorage
from sluice.relay.storage._object_store import ObjectStorage
jobs = Jobs(LocalStorage(__import__("pathlib").Path(sys.argv[1]), "x"))
print("ready", flush=True)
sys.stdin.readline()
for number in range(6):
    try:
        scope = WriteScope("db", (f"t{number}", f"t{number + 1}"))
        print(jobs.create("k", {"by": sys.argv[2]}, scope, sys.argv[2]).id)
    except JobOverlapError:
        pass
"""


@pytest.mark.slow
def test_of_many_processes_that_create_at_once_no_two_get_what_overlaps(tmp_path: Path) -> None:
    for turn in range(3):
        folder = tmp_path / str(turn)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", CREATOR, str(folder), str(n)],
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for n in range(4)
        ]
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        made = [
            line for process in processes for line in process.communicate(timeout=60)[0].split()
        ]
        found = Jobs(LocalStorage(folder, "x")).list()
        assert sorted(made) == sorted(job.id for job in found)
        touched = [table for job in found for table in job.spec.touches.tables or ()]
        assert len(touched) == len(set(touched)) and len(found) >= 2


def test_of_many_who_create_at_once_in_an_object_store_no_two_get_what_overlaps() -> None:
    store = MemoryStore()
    start = threading.Barrier(4)
    made: list[Job] = []

    def create(who: int) -> None:
        jobs = Jobs(ObjectStorage(store, "memory:"))
        start.wait()
        for number in range(12):
            with contextlib.suppress(JobOverlapError):
                made.append(
                    jobs.create(
                        "k", {}, WriteScope(HERE, (f"t{number}", f"t{number + 1}")), str(who)
                    )
                )

    threads = [threading.Thread(target=create, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    touched = [table for job in made for table in job.spec.touches.tables or ()]
    assert len(touched) == len(set(touched)) and len(made) >= 4
    assert len({job.id for job in made}) == len(made)
    assert {job.id for job in Jobs(ObjectStorage(store, "memory:")).list()} == {
        job.id for job in made
    }


def test_one_process_runs_a_job_and_a_second_one_is_told_which(jobs: Jobs) -> None:
    job = a_job(jobs)
    with job.run(Runner("the first")) as run:
        assert job.status().state == RUNNING
        with pytest.raises(
            JobRunsError, match=rf"is run by the first \(process {os.getpid()} on .*\), since"
        ):
            jobs.get(job.id).run(Runner("the second"), timeout_s=60)
        run.end(DONE, result={"rows": 3})
    status = job.status()
    assert (status.state, status.entry.result) == (DONE, {"rows": 3})
    assert job.files.result() == {
        "state": "done",
        "by": status.entry.by,
        "made_ms": status.entry.made_ms,
        "message": "",
        "hint": "",
        "result": {"rows": 3},
    }
    with pytest.raises(JobError, match="is done already"):
        job.run(Runner("the second"))
    with pytest.raises(JobError, match="is done already"):
        job.order(PAUSE, "ann")


def test_a_process_that_was_taken_for_dead_learns_of_it_and_says_nothing_more(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(jobs)
    monkeypatch.setattr("sluice.relay.jobs.lease.HEARTBEAT_INTERVAL_S", 3600)  # it stands still
    with job.run(Runner("the first")) as first:
        first.set_totals({"d.a": TableProgress(bytes_in_all=10)})
        second = jobs.get(job.id).run(Runner("the second"), timeout_s=0)
        first.did("d.a", JobCounts(1, 1, 1))
        first.check()  # it has not looked yet
        with pytest.raises(LeaseLostError, match="run by the second"):
            first.end(DONE)
        with pytest.raises(LeaseLostError):
            first.check()
    with second:
        second.set_totals({"d.a": TableProgress(bytes_in_all=20)})
        assert job.status().progress.in_all.done == JobCounts()
        assert job.files.result() is None and job.entry().run == 2


def test_whatever_a_process_that_woke_late_stumbles_over_it_says_who_has_taken_the_job(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(jobs)
    monkeypatch.setattr("sluice.relay.jobs.lease.HEARTBEAT_INTERVAL_S", 3600)  # it stands still
    with (
        pytest.raises(LeaseLostError, match=r"taken over by the second .*, and is done") as told,
        job.run(Runner("the first")),
    ):
        with jobs.get(job.id).run(Runner("the second"), timeout_s=0) as second:
            second.end(DONE)
        raise FileNotFoundError("done/7.json")
    assert (
        isinstance(told.value.__cause__, FileNotFoundError)
        and "nothing need be done" in told.value.hint
    )
    assert job.entry().state == DONE


def test_orders_are_heard_and_taken_back(jobs: Jobs) -> None:
    job = a_job(jobs)
    assert job.order(PAUSE, "ann").state == PLANNED
    with job.run(Runner("a test")) as run:
        assert run.order is None
        assert job.order(PAUSE, "ann").state == PAUSING
        run.look()
        assert run.order == PAUSE
        assert job.order(RESUME, "ann").state == RUNNING
        run.look()
        assert run.order is None
        assert job.order(CANCEL, "bob").state == CANCELLING
        with pytest.raises(JobError, match="is being cancelled, as bob asked"):
            job.order(RESUME, "ann")
        run.look()
        assert run.order == CANCEL
        run.end(CANCELLED, message="3 tables are there", hint="drop them")
    assert job.status().entry.message == "3 tables are there"


def test_an_order_to_cancel_a_job_that_nobody_runs_is_heard_by_who_runs_it_next(jobs: Jobs) -> None:
    job = a_job(jobs)
    with job.run(Runner("a test", "group")) as run:
        run.end(PAUSED)
    assert job.order(PAUSE, "ann").state == PAUSED
    assert job.order(CANCEL, "ann").state == job.status().state == CANCELLING
    with pytest.raises(JobError, match="is being cancelled"):
        job.order(RESUME, "ann")
    with job.run(Runner("another"), timeout_s=3600) as run:
        assert run.order == CANCEL
        run.end(CANCELLED)


def test_an_order_to_cancel_outlives_the_process_that_heard_it(jobs: Jobs, tmp_path: Path) -> None:
    job = a_job(jobs)
    leave_behind(tmp_path / "relay", job.id)
    job.order(CANCEL, "ann")
    with job.run(Runner("the next")) as run:
        assert run.order == CANCEL


DYING = """
import os, pathlib, sys
from sluice.relay.jobs import JobCounts, Jobs, Runner, TableProgress
from sluice.relay.storage import LocalStorage
from sluice.relay.storage._object_store import ObjectStorage
job = Jobs(LocalStorage(pathlib.Path(sys.argv[1]), "x")).get(sys.argv[2])
with job.run(Runner("the dying")) as run:
    run.set_totals({"d.a": TableProgress(JobCounts(5, 50, 1), 200, 4)})
    run.did("d.a", JobCounts(5, 50, 1))
    run._note()
    os.kill(os.getpid(), 9)
"""


def leave_behind(relay: Path, job: str) -> None:
    done = subprocess.run([sys.executable, "-c", DYING, str(relay), job], cwd=ROOT, timeout=60)
    assert done.returncode == -9


def test_a_job_whose_process_was_killed_is_interrupted_and_the_next_process_goes_on_at_once(
    jobs: Jobs, tmp_path: Path
) -> None:
    job = a_job(jobs)
    leave_behind(tmp_path / "relay", job.id)
    status = job.status()
    assert status.state == INTERRUPTED
    assert (
        status.progress.in_all == TableProgress(JobCounts(10, 100, 2), 200, 4, None)
        and status.progress.in_all.percent == 50
    )
    with pytest.raises(JobOverlapError, match="which is interrupted"):
        a_job(jobs)
    with job.run(Runner("the next"), timeout_s=3600) as run:
        assert run.number == 2
        assert job.status().state == RUNNING


def test_what_ends_a_run_is_written_down_with_the_hint(jobs: Jobs) -> None:
    job = a_job(jobs)
    with pytest.raises(JobError), job.run(Runner("a test")):
        raise JobError("no such column", hint="add it")
    entry = job.status().entry
    assert (entry.state, entry.message, entry.hint) == (FAILED, "no such column; add it", "add it")
    assert (job.files.result() or {})["state"] == FAILED
    with pytest.raises(KeyboardInterrupt), job.run(Runner("a test")):
        raise KeyboardInterrupt
    assert job.status().state == PAUSED


def test_processes_of_a_group_run_a_job_together_and_no_other_joins(jobs: Jobs) -> None:
    job = a_job(jobs)
    with job.run(Runner("task plan", "run 1")) as first:
        first.set_totals({"d.a": TableProgress(JobCounts(1, 1, 1), 100, 10)})
    assert job.status().state == RUNNING  # the next task begins soon
    with job.join(Runner("task 1", "run 1")) as one, job.join(Runner("task 2", "run 1")) as two:
        assert one.number == two.number == first.number
        one.did("d.a", JobCounts(10, 20, 2))
        two.did("d.a", JobCounts(10, 20, 2))
        two.did("d.a", JobCounts(1, 9, 1))
        one._note()
        two._note()
        assert job.status().progress.tables["d.a"].done == JobCounts(22, 50, 6)
        with pytest.raises(JobRunsError, match="is run by task plan"):
            job.run(Runner("sluice bootstrap"))
        one.end(FAILED, message="no room")
        two.look()
        with pytest.raises(LeaseLostError, match="is failed: no room"):
            two.check()
    with pytest.raises(LeaseLostError, match="is failed: no room"):
        job.join(Runner("task 2 again", "run 1"))


def test_progress_tells_the_pace_and_how_long_it_will_take(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sluice.relay.jobs.lease.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sluice.relay.jobs.lease.HEARTBEAT_INTERVAL_S", 3600)
    job = a_job(jobs)
    with job.run(Runner("a test")) as run:
        run.set_totals(
            {"d.a": TableProgress(bytes_in_all=1000, chunks_in_all=4), "d.b": TableProgress()}
        )
        run.doing("d.a")
        run.did("d.a", JobCounts(100, 250, 1))
        now[0] += 5
        run._note()
        shown = job.status().progress.to_json()
    assert shown["rows_per_s"] == 20 and shown["bytes_per_s"] == 50 and shown["left_s"] == 15
    assert (
        shown["percent"] == 25
        and shown["doing"] == ["d.a"]
        and shown["tables"]["d.b"]["percent"] == 100
    )


def test_connecting_and_the_first_hundredth_tell_no_time_left(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sluice.relay.jobs.lease.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sluice.relay.jobs.lease.HEARTBEAT_INTERVAL_S", 3600)
    job = a_job(jobs)
    with job.run(Runner("a test")) as run:
        run.set_totals({"d.a": TableProgress(bytes_in_all=10_000)})
        now[0] += 14  # Spark starts
        run._note()
        run.did("d.a", JobCounts(1, 100, 0))
        now[0] += 1
        run._note()
        assert job.status().progress.left_s is None
        run.did("d.a", JobCounts(40, 4_900, 0))
        now[0] += 1
        run._note()
        assert job.status().progress.left_s == 2.0
        run.did("d.a", JobCounts(60, 6_000, 0))
        run._note()
        shown = job.status().progress.to_json()
        # more than was estimated, and no end yet
        assert (shown["percent"], shown["left_s"]) == (99, None)


def test_a_job_of_unknown_size_has_no_percentage_until_it_is_done(jobs: Jobs) -> None:
    job = a_job(jobs)
    with job.run(Runner("a test")) as run:
        assert job.status().progress.to_json()["percent"] is None  # it is planning
        run.set_totals({"d.a": TableProgress(), "d.b": TableProgress()})
        run.did("d.a", JobCounts(9, 75, 3))
        run._note()
        shown = job.status().progress.to_json()
        assert (shown["percent"], shown["tables"]["d.a"]["percent"]) == (None, None)
        assert "%" not in str(job.status().progress)
        run.end(DONE)
    shown = job.status().progress.to_json()
    assert (shown["percent"], shown["tables"]["d.b"]["percent"]) == (100, 100)


@pytest.mark.parametrize(
    ("state", "percent"), [(DONE, 100), (PAUSED, 99), (FAILED, 99), (CANCELLED, 99)]
)
@pytest.mark.parametrize("read", [75, 136])
def test_a_job_is_at_100_percent_once_it_is_done_and_at_no_other_time(
    jobs: Jobs, state: str, percent: int, read: int
) -> None:
    job = a_job(jobs)
    with job.run(Runner("a test")) as run:
        run.set_totals(
            {"d.a": TableProgress(bytes_in_all=100, rows_in_all=10), "d.b": TableProgress()}
        )
        run.did("d.a", JobCounts(9, read, 3))
        run.end(state)
    shown = job.status().progress.to_json()
    assert shown["percent"] == min(percent, read if state != DONE else 100)
    assert (shown["left_s"], shown["rows_per_s"], shown["doing"]) == (None, 0, [])
    if state == DONE:
        assert {table["percent"] for table in shown["tables"].values()} == {100}
        assert (shown["bytes"], shown["bytes_in_all"], shown["rows_in_all"]) == (read, read, None)
        assert shown["tables"]["d.a"]["rows_in_all"] == 9


def test_forgetting_takes_every_file_and_refuses_a_job_that_is_not_over(
    storage: LocalStorage, jobs: Jobs, tmp_path: Path
) -> None:
    job = a_job(jobs, "d.a")
    with pytest.raises(JobError, match=r"is planned, and isn't over.*sluice jobs cancel backfill"):
        jobs.forget(job.id)
    assert not jobs.is_over(job.id)
    with job.run(Runner("a test")) as run:
        job.save_plan({"chunks": 1})
        storage.create(f"jobs/{job.id}/rows/1.arrow", b"rows")
        run.end(CANCELLED)
    assert jobs.is_over(job.id)
    jobs.forget(job.id)
    assert jobs.is_over(job.id)
    assert not (tmp_path / "relay" / "jobs" / job.id).exists()
    with pytest.raises(JobError, match="there is no job backfill"):
        jobs.forget(job.id)


def test_of_two_who_take_a_job_at_once_one_is_refused(jobs: Jobs) -> None:
    job = a_job(jobs)
    start = threading.Barrier(4)
    got: list[object] = []

    def take(number: int) -> None:
        start.wait()
        try:
            got.append(jobs.get(job.id).run(Runner(f"process {number}"), timeout_s=0).number)
        except JobRunsError as error:
            got.append(error)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [number for number in got if isinstance(number, int)]
    assert sorted(taken) == list(range(1, len(taken) + 1)) and job.entry().run == len(taken)
