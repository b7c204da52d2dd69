"""Attaching to the warm Spark Connect server."""

import os
import subprocess
import sys
import threading
import time

import pytest

from sluice.etl.settings import Spark
from sluice.etl.spark.errors import SparkJobTimeout, SparkUnavailableError
from sluice.etl.spark.job import stream, window_range
from sluice.etl.spark.session import attach, close, connect, interrupt_all, session_id
from sluice.etl.spark.session_target import SessionTarget

ENDLESS = """
import sys
from sluice.etl.settings import Spark
from sluice.etl.spark.session import attach
remote, mark = sys.argv[1:]
def forever(batches):
    import time
    for batch in batches:
        open(mark, "w").close()
        time.sleep(600)
        yield batch
spark = attach(Spark(remote), "victim")
spark.range(1).mapInArrow(forever, "id long").collect()
"""


def test_a_name_always_gives_the_same_session(spark_remote):
    first = attach(Spark(spark_remote), "same")
    first.conf.set("spark.sluice.test", "still here")
    close(first)
    second = attach(Spark(spark_remote), "same")
    assert second.session_id == session_id("same")
    assert second.conf.get("spark.sluice.test") == "still here"
    close(second)


@pytest.mark.slow
def test_the_job_of_a_killed_predecessor_is_interrupted(spark_remote, tmp_path):
    running = tmp_path / "running"
    child = subprocess.Popen([sys.executable, "-c", ENDLESS, spark_remote, str(running)])
    try:
        deadline = time.monotonic() + 60
        while not running.exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    spark = attach(Spark(spark_remote), "victim")
    deadline = time.monotonic() + 60
    while spark.interruptAll():
        assert time.monotonic() < deadline, "the job of the killed process goes on"
        time.sleep(0.1)
    assert spark.range(3).count() == 3
    close(spark)


@pytest.mark.slow
def test_interrupting_all_ends_what_this_process_has_spark_do(spark_remote, tmp_path):
    running, ended = str(tmp_path / "running"), []

    def forever(batches):
        for batch in batches:
            open(running, "w").close()
            time.sleep(600)
            yield batch

    spark = attach(Spark(spark_remote), "interrupted")

    def work():
        try:
            spark.range(1).mapInArrow(forever, "id long").collect()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not os.path.exists(running):
        assert thread.is_alive() and time.monotonic() < deadline
        time.sleep(0.05)
    interrupt_all()
    thread.join(60)
    assert "OPERATION_CANCELED" in str(ended)
    close(spark)


def test_a_session_closed_on_the_server_gives_way_to_a_new_one(spark_remote):
    first = attach(Spark(spark_remote), "closed")
    first.stop()
    second = attach(Spark(spark_remote), "closed")
    assert second.session_id == session_id("closed", 1)
    assert second.range(2).count() == 2
    close(second)


def test_a_server_that_is_not_there_is_named_within_the_time_out():
    began = time.monotonic()
    with pytest.raises(
        SparkUnavailableError,
        match=r"sc://127\.0\.0\.1:1 doesn't answer after .* \(.*Connection refused\)",
    ):
        attach(Spark("sc://127.0.0.1:1"), "nobody", timeout_s=1)
    assert time.monotonic() - began < 60


def test_a_job_that_gives_nothing_more_is_given_up_with_a_word_on_executors(spark_remote):
    def half(batches):
        import time

        for batch in batches:
            if batch["id"][0].as_py():
                time.sleep(600)
            yield batch

    spark = attach(Spark(spark_remote), "silence", timeout_s=120)
    frame = spark.range(0, 2, 1, 2).mapInArrow(half, "id long")
    # Its first half comes, so it runs when it is given up.
    with pytest.raises(
        SparkJobTimeout, match="gave nothing for 1 s, so the job was interrupted"
    ) as caught:
        list(stream(spark, frame, 1.0))
    assert "has executors" in caught.value.hint
    close(spark)


@pytest.mark.slow
def test_a_job_that_is_given_up_ends_no_other_of_its_session(spark_remote, tmp_path):
    mark = str(tmp_path / "ended")

    def until_the_other_is_over(batches):
        import os
        import time

        while not os.path.exists(mark):
            time.sleep(0.05)
        yield from batches

    def forever(batches):
        import time

        yield from batches
        time.sleep(600)

    spark = attach(Spark(spark_remote), "two jobs", timeout_s=120)
    patient, rows = spark.range(1).mapInArrow(until_the_other_is_over, "id long"), []
    thread = threading.Thread(target=lambda: rows.extend(stream(spark, patient, 120.0)))
    thread.start()
    with pytest.raises(SparkJobTimeout):
        list(stream(spark, spark.range(1).mapInArrow(forever, "id long"), 1.0))
    (tmp_path / "ended").touch()
    thread.join(120)
    assert [batch.num_rows for batch in rows] == [1]
    close(spark)


@pytest.mark.slow
def test_a_job_whose_caller_stops_is_ended_and_no_other_of_its_session(spark_remote, tmp_path):
    at_work, other_at_work, mark = (str(tmp_path / name) for name in ("one", "other", "ended"))

    def one_then_forever(batches):
        import os
        import time

        for batch in batches:
            while batch["id"][0].as_py():
                open(at_work, "w").close()
                time.sleep(0.05)
                if os.path.exists(mark):  # the test has failed, and Spark keeps no task of it
                    return
            yield batch

    def until_the_other_is_over(batches):
        import os
        import time

        open(other_at_work, "w").close()
        while not os.path.exists(mark):
            time.sleep(0.05)
        yield from batches

    def is_written(path):
        if os.path.exists(path):
            os.remove(path)
        time.sleep(1.0)
        return os.path.exists(path)

    spark = attach(Spark(spark_remote), "a caller stops", timeout_s=120)
    batches = stream(spark, spark.range(0, 2, 1, 2).mapInArrow(one_then_forever, "id long"), 120.0)
    assert next(batches).num_rows == 1
    other = spark.range(1).mapInArrow(until_the_other_is_over, "id long")
    rows = []
    thread = threading.Thread(target=lambda: rows.extend(stream(spark, other, 120.0)))
    thread.start()
    deadline = time.monotonic() + 120
    while not (os.path.exists(other_at_work) and is_written(at_work)):
        assert time.monotonic() < deadline
    batches.close()
    while is_written(at_work):
        assert time.monotonic() < deadline
    (tmp_path / "ended").touch()
    thread.join(120)
    assert [batch.num_rows for batch in rows] == [1]
    close(spark)


@pytest.mark.parametrize("tag", ["sluice land at {place}/a_b", "windows after 3 through 5"])
def test_a_job_is_named_by_what_it_is_for_and_where(spark_remote, tmp_path, tag):
    place = SessionTarget(Spark(spark_remote), "land", f"{tmp_path.as_uri()}/a,b?region=x")
    spark, failed = connect(place), []

    def run():
        def forever(batches):
            import time

            time.sleep(600)
            yield from batches

        try:
            frame = spark.range(1).mapInArrow(forever, "id long")
            list(stream(spark, frame, 600.0, (window_range(3, 5), "")))
        except Exception as error:
            failed.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while not spark.interruptTag(tag.format(place=tmp_path.as_uri())):
        assert thread.is_alive()
        time.sleep(0.1)
    thread.join(120)
    assert failed and "OPERATION_CANCELED" in failed[0].upper()
    close(spark)


def test_the_server_does_not_keep_the_plans_of_jobs_which_have_their_rows_in_them(spark_remote):
    spark = attach(Spark(spark_remote), "plans")
    try:
        assert spark.conf.get("spark.connect.session.planCache.enabled") == "false"
    finally:
        close(spark)
