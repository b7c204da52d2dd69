"""The archive through Spark's workers, and in an object store."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sluice.etl.history.archive import archive_through, check, compact
from sluice.etl.history.archive._segment_queue import SparkSegmentBuilder
from sluice.etl.history.archive.archiver import ROLE, Archiver
from sluice.etl.settings import Spark
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.spark.worker_tuning import text_batch
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from tests.etl.history.archive.archiving import Growing, LocalJobs, differences, settings_of
from tests.etl.relay_from_recording import RECORDINGS, land


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> RelayLog:
    return land(RECORDINGS / "ddl", tmp_path_factory.mktemp("ddl").as_uri(), 100)


@pytest.mark.slow
def test_spark_s_workers_make_segments_side_by_side_and_read_them(source, tmp_path, spark_remote):
    settings = settings_of(tmp_path.as_uri(), **{"worker-count": 2})
    settings = replace(settings, spark=Spark(spark_remote))
    growing = Growing(source, settings.relay.url)
    growing.land(4)
    archiver = Archiver(settings, segment_bytes=1)
    archiver.through()
    archiver.close()
    archive = Archive.open(settings.archive_url)
    assert archiver.summary.segments == len(list(archive.segments())) == 4
    assert differences(growing.relay, archive) == []
    assert check(settings).problems == []


@pytest.mark.slow
def test_a_pass_s_job_on_spark_goes_on_while_somebody_who_needs_a_moment_archives(
    source, tmp_path, spark_remote
):
    settings = replace(settings_of((tmp_path / "relay").as_uri()), spark=Spark(spark_remote))
    landed = Growing(source, settings.relay.url).land(4)
    begun, end = tmp_path / "begun", tmp_path / "end"

    def until_it_may_end(batches):
        for _ in batches:
            begun.touch()
            while not end.exists():
                time.sleep(0.05)
            yield text_batch('"undisturbed"')

    jobs = SparkSegmentBuilder(
        SessionTarget(settings.spark, ROLE, settings.relay.url), until_it_may_end
    )
    jobs.connect()
    with contextlib.closing(jobs), ThreadPoolExecutor(1) as threads:
        running = threads.submit(jobs.run, {"token": "t", "records": b"", "binlog_bytes": 0})
        while not begun.exists() and not running.done():
            time.sleep(0.05)
        try:
            assert archive_through(settings).hi == landed[-1].hi
        finally:
            end.touch()
        assert running.result() == "undisturbed"


@pytest.mark.slow
def test_an_archive_in_an_object_store_beside_its_relay_log(source, s3_server):
    settings = settings_of(s3_server.url())
    growing = Growing(source, settings.relay.url)
    archiver = Archiver(settings, jobs=LocalJobs(settings), segment_bytes=1)
    while growing.land(3):
        archiver.through()
    archive = Archive.open(settings.archive_url)
    assert archive.url == s3_server.url("relay/archive")
    assert differences(growing.relay, archive) == []
    assert compact(settings, jobs=LocalJobs(settings, settings.archive_url)).into == 1
    assert differences(growing.relay, archive) == []
    assert check(settings, jobs=LocalJobs(settings)).problems == []
