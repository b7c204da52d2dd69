"""Past windows into a folder of binlog files: the bytes that were written the first time, once,
beside the pipeline.
"""

from __future__ import annotations

import random
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.binlog_file import commit_ts_of, encode_record, read_file
from sluice.etl.downstream import CheckpointError
from sluice.etl.downstream.sinks import open_sink, read_checkpoint
from sluice.etl.history.retain.purge_relay import purge_windows
from sluice.etl.settings import Settings, SettingsError, read_target
from sluice.etl.settings.pauses import MIN_KEEP_MS
from sluice.etl.verify.reapply import (
    ReplayRangeError,
    ReplayRequest,
    cancel_reapply,
    create_or_resume,
    make_replay_plan,
)
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    DONE,
    FAILED,
    PAUSE,
    PAUSED,
    RUNNING,
    JobCounts,
    JobOverlapError,
    Jobs,
    Runner,
    TableProgress,
)
from sluice.tidb import pb
from tests.etl.killed_writer import ON_BATCH, ends_by_itself
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.verify.reapply.reapplying import (
    Enough,
    between,
    documents,
    files_in,
    messages_in,
    pipeline_with,
    reapply,
    records,
    small_batches,
    stop_after,
)
from tests.relay.archivekit import archive_all

CLUSTER = 7
DRAINER_FILE = RECORDINGS / "shop" / "drainer-file" / "binlog-0000000000000000-20261121092320.gz"


@pytest.fixture(scope="module")
def original() -> list[bytes]:
    """What the original Drainer wrote for the recording."""
    return [message for _, message in read_file(DRAINER_FILE)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    return land(
        RECORDINGS / "shop", f"file://{tmp_path_factory.mktemp('shop')}", 300, cluster_id=CLUSTER
    )


@pytest.fixture
def pipeline(shop: RelayLog, tmp_path: Path) -> Settings:
    return pipeline_with(shop.url, tmp_path / "running")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_past_range_has_the_bytes_that_were_written_the_first_time(
    pipeline: Settings, tmp_path: Path, original: list[bytes], seed: int
) -> None:
    """The ends lie anywhere, in the middle of windows too, on a commit or between two."""
    rng = random.Random(seed)
    first, last = sorted(rng.sample([commit_ts_of(message) for message in original], 2))
    since, until = first - rng.randint(0, 1), last + rng.randint(0, 1)
    target = small_batches(files_in(tmp_path / "again", **{"max-file-bytes": 400_000}), 700)
    done = reapply(pipeline, ReplayRequest(since, until, target))
    expected = between(original, since, until)
    assert len(expected) > 10
    assert records(tmp_path / "again") == b"".join(encode_record(message) for message in expected)
    assert done.through == until


@pytest.mark.slow
def test_the_running_pipeline_is_not_touched(
    shop: RelayLog, pipeline: Settings, tmp_path: Path
) -> None:
    last = shop.last()
    assert last is not None
    middle = (shop.first() or last).hi
    run_apply(pipeline, until_ts=middle, run_seconds=240, prepare=local_preparer(pipeline))
    before, files = documents(shop), records(tmp_path / "running")
    shop.change_control(lambda control: type(control)(apply_paused=True))
    try:
        paused = documents(shop)
        # it waits for nobody's orders
        reapply(pipeline, ReplayRequest(middle, last.hi, files_in(tmp_path / "again")))
        assert documents(shop) == paused
    finally:
        shop.change_control(lambda control: type(control)())
    assert before.keys() <= documents(shop).keys()
    assert records(tmp_path / "running") == files
    found = read_checkpoint(pipeline.target, CLUSTER)
    assert found is not None and found.commit_ts == middle


@pytest.mark.slow
def test_only_the_tables_that_were_asked_for_go_there(
    shop: RelayLog, pipeline: Settings, tmp_path: Path, original: list[bytes]
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    names = make_replay_plan(
        pipeline, ReplayRequest(first.lo, last.hi, files_in(tmp_path / "again"))
    ).tables
    chosen = names[0]
    reapply(pipeline, ReplayRequest(first.lo, last.hi, files_in(tmp_path / "again"), (chosen,)))
    found = {ts: events for ts, events in map(events_of, messages_in(tmp_path / "again")) if events}
    assert {
        f"{event.schema_name}.{event.table_name}" for events in found.values() for event in events
    } == {chosen}
    expected = {
        ts: [e for e in events if f"{e.schema_name}.{e.table_name}" == chosen]
        for ts, events in map(events_of, original)
    }
    assert found == {ts: events for ts, events in expected.items() if events}
    ddl = [message for message in messages_in(tmp_path / "again") if not events_of(message)[1]]
    assert ddl and all(message in original for message in ddl)


def events_of(message: bytes) -> tuple[int, list[Any]]:
    """A record's commit timestamp and its row changes; none for a DDL."""
    binlog = pb.file_binlog.Binlog.FromString(message)
    return binlog.commit_ts, list(binlog.dml_data.events)


_CHILD = textwrap.dedent("""
    import sys
    from pathlib import Path
    from sluice.etl.verify.reapply import ReplayRequest
    from tests.etl.verify.reapply.reapplying import files_in, pipeline_with, reapply, small_batches
    url, folder, since, until = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    request = ReplayRequest(since, until, small_batches(files_in(folder / "again"), 300))
    reapply(pipeline_with(url, folder / "running"), request, on_progress=ON_BATCH)
    print("done", flush=True)
""").replace("ON_BATCH", ON_BATCH)


@pytest.mark.slow
def test_kill_9_in_the_middle_leaves_no_gap_and_nothing_twice(
    shop: RelayLog, tmp_path: Path, original: list[bytes]
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    since = first.hi - 1
    rng = random.Random(5)
    argv = [sys.executable, "-c", _CHILD, shop.url, str(tmp_path), str(since), str(last.hi)]
    assert not ends_by_itself(argv, rng.randrange(3, 12), rng)
    assert ends_by_itself(argv, None, rng)
    assert messages_in(tmp_path / "again") == between(original, since, last.hi)


@pytest.mark.slow
def test_windows_stay_while_a_job_needs_them_and_go_when_it_is_over(
    tmp_path: Path, original: list[bytes]
) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 300, cluster_id=CLUSTER)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    pipeline = pipeline_with(relay.url, tmp_path / "running")
    archive = Archive.open(f"file://{tmp_path}/archive")
    archive_all(relay, archive)
    Consumers(relay).note("apply", last.hi + (MIN_KEEP_MS << 18) * 10, "far ahead")
    request = ReplayRequest(first.lo, last.hi, small_batches(files_in(tmp_path / "again"), 300))

    def let_go() -> None:
        purge_windows(relay, archive, MIN_KEEP_MS, lambda: False)

    def purge_then_stop(_done: JobCounts, _of: TableProgress) -> None:
        let_go()
        raise Enough

    with pytest.raises(Enough):
        reapply(pipeline, request, on_progress=purge_then_stop)
    assert relay.first() == first
    reapply(pipeline, request)
    assert messages_in(tmp_path / "again") == original
    let_go()
    assert relay.first() == last


def test_orders_are_obeyed_at_the_next_border_and_a_cancelled_job_keeps_no_windows(
    tmp_path: Path, original: list[bytes]
) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 300, cluster_id=CLUSTER)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    pipeline = pipeline_with(relay.url, tmp_path / "running")
    request = ReplayRequest(first.lo, last.hi, small_batches(files_in(tmp_path / "again"), 300))
    jobs = Jobs(relay.storage)

    def order(what: str) -> Callable[[JobCounts, TableProgress], None]:
        def ordered(_done: JobCounts, _of: TableProgress) -> None:
            if jobs.get("reapply").entry().state == RUNNING:
                jobs.get("reapply").order(what, "test")

        return ordered

    done = reapply(pipeline, request, order(PAUSE))
    assert (done.is_done, jobs.get("reapply").entry().state) == (False, PAUSED)
    assert Consumers(relay).positions() == {"job-reapply": done.through}
    assert messages_in(tmp_path / "again") == between(original, first.lo, done.through)
    further = reapply(pipeline, request, order(CANCEL))
    assert done.through < further.through < last.hi
    assert jobs.get("reapply").entry().state == CANCELLED
    assert Consumers(relay).positions() == {}
    assert messages_in(tmp_path / "again") == between(original, first.lo, further.through)


@pytest.mark.slow
def test_a_job_says_how_far_it_is_and_how_it_ended(
    shop: RelayLog, pipeline: Settings, tmp_path: Path
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    request = ReplayRequest(first.lo, last.hi, small_batches(files_in(tmp_path / "again"), 300))
    with pytest.raises(Enough):
        reapply(pipeline, request, stop_after(2))
    (job,) = [job for job in Jobs(shop.storage).list() if job.spec.asked == request.to_json()]
    assert job.entry().state == FAILED
    done = reapply(pipeline, request)
    status = job.status()
    assert (status.state, status.progress.in_all.percent) == (DONE, 100)
    assert (
        status.entry.result is not None
        and status.entry.result["through"] == done.through == last.hi
    )


def test_two_jobs_into_one_place_exclude_each_other(
    shop: RelayLog, pipeline: Settings, tmp_path: Path
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    one = ReplayRequest(first.lo, last.hi, small_batches(files_in(tmp_path / "again"), 300))
    job = create_or_resume(pipeline, one, "ann")
    with pytest.raises(
        JobOverlapError, match=rf"is touched by the job {job.id} .*asked for by ann"
    ):
        create_or_resume(
            pipeline, ReplayRequest(first.hi, last.hi, files_in(tmp_path / "again")), "bob"
        )
    assert create_or_resume(pipeline, one, "bob").id == job.id


def test_windows_that_are_not_there_are_refused_with_those_that_are(tmp_path: Path) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 1000, cluster_id=CLUSTER)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    relay.purge(first.hi)
    pipeline = pipeline_with(relay.url, tmp_path / "running")
    there = rf"holds what was committed after {first.hi} \(.* UTC\) through {last.hi} \(.* UTC\)"
    for since, until in ((first.lo, last.hi), (first.hi, last.hi + 1)):
        with pytest.raises(ReplayRangeError, match=there):
            reapply(pipeline, ReplayRequest(since, until, files_in(tmp_path / "again")))
    with pytest.raises(ReplayRangeError, match="is not before --until"):
        reapply(pipeline, ReplayRequest(last.hi, last.hi, files_in(tmp_path / "again")))
    assert not (tmp_path / "again").exists()
    assert Consumers(relay).positions() == {}


def test_windows_that_go_under_a_job_stop_it_and_what_it_wrote_stays_whole(
    tmp_path: Path, original: list[bytes]
) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 300, cluster_id=CLUSTER)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    pipeline = pipeline_with(relay.url, tmp_path / "running")
    request = ReplayRequest(first.lo, last.hi, small_batches(files_in(tmp_path / "again"), 300))

    with pytest.raises(Enough):
        reapply(pipeline, request, on_progress=stop_after(1))
    relay.purge(last.lo)
    with pytest.raises(Exception, match="what lies between was removed"):
        reapply(pipeline, request)
    written = messages_in(tmp_path / "again")
    assert written == original[: len(written)]


def test_a_folder_of_somebody_else_is_refused(
    shop: RelayLog, pipeline: Settings, tmp_path: Path
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    run_apply(pipeline, until_ts=first.hi, run_seconds=240, prepare=local_preparer(pipeline))
    (tmp_path / "link").symlink_to(tmp_path / "running")
    with pytest.raises(ReplayRangeError, match="the pipeline writes its files to"):
        reapply(pipeline, ReplayRequest(first.hi, last.hi, files_in(tmp_path / "link")))
    other = pipeline_with(shop.url, tmp_path / "elsewhere")
    with pytest.raises(ReplayRangeError, match="savepoint of a pipeline or a Drainer"):
        reapply(other, ReplayRequest(first.hi, last.hi, files_in(tmp_path / "running")))
    (tmp_path / "running" / "savepoint").unlink()
    with pytest.raises(ReplayRangeError, match=r"there are binlog files in .*running already"):
        reapply(other, ReplayRequest(first.hi, last.hi, files_in(tmp_path / "running")))


def test_what_a_job_wrote_is_no_place_for_a_pipeline_or_another_job(
    shop: RelayLog, pipeline: Settings, tmp_path: Path
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    request = ReplayRequest(first.lo, first.hi, files_in(tmp_path / "again"))
    reapply(pipeline, request)
    with pytest.raises(
        ReplayRangeError, match=r"was written by the job \S+, and a pipeline is to write there"
    ):
        reapply(pipeline, ReplayRequest(first.hi, last.hi, files_in(tmp_path / "again")))
    with pytest.raises(CheckpointError, match="was written by the job reapply"):
        open_sink(pipeline_with(shop.url, tmp_path / "again"), CLUSTER).recover()
    with pytest.raises(ReplayRangeError, match=r"there are binlog files in .* already"):
        reapply(pipeline, request)


def test_a_place_that_was_emptied_under_a_job_is_not_begun_anew(
    shop: RelayLog, pipeline: Settings, tmp_path: Path
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    request = ReplayRequest(first.lo, last.hi, small_batches(files_in(tmp_path / "again"), 300))

    for _ in range(2):  # the second one notes how far the first has come
        with pytest.raises(Enough):
            reapply(pipeline, request, on_progress=stop_after(1))
    for path in (tmp_path / "again").iterdir():
        path.unlink()
    with pytest.raises(
        ReplayRangeError, match=r"the checkpoint of the job \S+, which was at .* is gone"
    ):
        reapply(pipeline, request)


def test_the_plan_tells_windows_changes_and_ddl_and_writes_nothing(
    shop: RelayLog, pipeline: Settings, tmp_path: Path
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    before = documents(shop)
    plan = make_replay_plan(
        pipeline, ReplayRequest(first.lo, last.hi, files_in(tmp_path / "again"))
    )
    windows = list(shop.windows(first.lo, last.hi))
    assert (plan.windows, plan.changes) == (len(windows), sum(window.changes for window in windows))
    assert plan.bytes == sum(part.bytes for window in windows for part in window.parts)
    statements = [ddl["query"] for window in windows for ddl in window.ddls]
    assert statements and len(plan.ddls) <= len(statements)
    assert not plan.problems
    assert documents(shop) == before and not (tmp_path / "again").exists()
    missed = make_replay_plan(
        pipeline, ReplayRequest(first.lo, last.hi, files_in(tmp_path / "again"), ("no.such*",))
    )
    assert [problem for problem in missed.problems if "--table no.such*" in problem]


def test_of_the_other_settings_file_the_downstream_and_the_rules_count(
    pipeline: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "other.toml"
    path.write_text(
        '[upstream]\npd-urls = "http://elsewhere:2379"\n[relay]\nurl = "file:///elsewhere"\n'
        '[downstream]\ntype = "file"\n[file]\ndir = "/again"\n[filter]\nignore-db = ["test"]\n'
    )
    own = ReplayRequest(1, 2, read_target(path)).settings(pipeline)
    assert (own.upstream, own.relay) == (pipeline.upstream, pipeline.relay)
    assert own.file.dir == "/again"
    assert not own.filters.wants_table("test", "t")
    path.write_text('[file]\ndir = "/again"\n')
    with pytest.raises(SettingsError, match=r"other\.toml: \[downstream\] is missing"):
        read_target(path)
    path.write_text('[downstream]\ntype = "file"\n')
    with pytest.raises(SettingsError, match=r"other\.toml: \[file\] dir is missing"):
        read_target(path)


@pytest.mark.slow
def test_without_an_end_it_is_what_was_landed_when_it_was_asked_for(tmp_path: Path) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 3000, cluster_id=CLUSTER)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    pipeline = pipeline_with(relay.url, tmp_path / "running")
    request = ReplayRequest(first.lo, 0, files_in(tmp_path / "again"))
    assert make_replay_plan(pipeline, request).until == last.hi
    job = create_or_resume(pipeline, request, "test")
    later = replace(
        last, lo=last.hi, hi=last.hi + 100, transactions=0, changes=0, parts=(), tables={}, ddls=()
    )
    relay.commit(later)
    assert create_or_resume(pipeline, request, "test").id == job.id
    assert reapply(pipeline, request).through == last.hi
    assert Jobs(relay.storage).get(job.id).entry().state == DONE


def test_a_job_that_nobody_runs_is_given_up_and_its_windows_may_go(tmp_path: Path) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 300, cluster_id=CLUSTER)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    pipeline = pipeline_with(relay.url, tmp_path / "running")
    request = ReplayRequest(first.lo, last.hi, small_batches(files_in(tmp_path / "again"), 300))
    with pytest.raises(Enough):
        reapply(pipeline, request, stop_after(1))
    job = Jobs(relay.storage).get("reapply")
    assert Consumers(relay).positions() == {"job-reapply": first.lo}
    said = cancel_reapply(pipeline, job, Runner("test"))
    assert "stays there" in said and records(tmp_path / "again")
    assert (job.entry().state, Consumers(relay).positions()) == (CANCELLED, {})
