"""What goes wrong on Spark comes as one of our errors, and says whether it passes."""

import grpc
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from sluice.errors import SluiceError
from sluice.etl.settings import Spark
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.errors import SparkError, WorkerError, parse_worker_error, report_to_client
from sluice.etl.spark.job import TaskFrame, stream
from sluice.etl.spark.session import attach, close

SCHEMA = pa.schema([("what", pa.string())])


def worker():
    """A function that Spark takes along as it is."""

    def meets(batches):
        from sluice.errors import SluiceError
        from sluice.etl.spark.errors import report_to_client

        with report_to_client():
            for batch in batches:
                what = batch.column(0).to_pylist()[0]
                if what == "disk":
                    raise OSError(28, "No space left on device", "/relay/part")
                if what == "defect":
                    {}[what]
                if what == "ours":
                    raise SluiceError('it said "no"\nin two lines: {}', hint="say yes")
                yield batch

    return meets


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize(
    ("what", "transient", "said", "hint"),
    [
        ("disk", True, "/relay/part", "room"),
        ("defect", False, "KeyError: 'defect'", "stack trace"),
        ("ours", False, 'it said "no"\nin two lines: {}; say yes', "say yes"),
    ],
)
def test_a_worker_says_itself_what_it_met(spark_remote, what, transient, said, hint):
    spark = attach(Spark(spark_remote), "errors")
    try:
        frame = TaskFrame(spark, worker(), SCHEMA, SCHEMA)
        judge = ErrorTranslator()
        with pytest.raises(WorkerError) as caught, judge.translating():
            list(stream(spark, frame.of(pa.table({"what": [what]})), 60))
        assert said in str(caught.value)
        assert caught.value.transient is transient
        assert hint in caught.value.hint
        with judge.translating():
            assert pa.Table.from_batches(stream(spark, frame.of(pa.table({"what": ["fine"]})), 60))[
                "what"
            ].to_pylist() == ["fine"]
    finally:
        close(spark)


def test_what_a_worker_said_is_no_error_of_ours_when_spark_has_cut_it_off():
    with pytest.raises(WorkerError) as caught, report_to_client():
        raise SluiceError("a long story")
    whole = f"Traceback …\netl.spark.errors.WorkerError: {caught.value}\n at org.apache.spark"
    assert "a long story" in str(parse_worker_error(whole))
    assert parse_worker_error(whole[: whole.index("story")]) is None
    assert parse_worker_error("nothing of a worker") is None


def test_trouble_of_which_nobody_knows_is_tried_again_three_times_in_a_row():
    judge = ErrorTranslator()

    def meet(text):
        with pytest.raises(SparkError) as caught, judge.translating():
            raise PySparkException(text)
        return caught.value.transient

    assert [meet("something odd") for _ in range(4)] == [True, True, True, False]
    with judge.translating():
        pass
    assert meet("something odd")
    assert all(meet("[SESSION_CLOSED] gone") for _ in range(10))


def test_an_assertion_of_ours_is_not_taken_for_a_lost_session():
    with pytest.raises(AssertionError, match="ours"), ErrorTranslator().translating():
        raise AssertionError("ours")
    with pytest.raises(SparkError) as caught, ErrorTranslator().translating():
        raise AssertionError("Received incorrect server side session identifier for request")
    assert caught.value.transient


@pytest.mark.parametrize(
    ("meets", "said"),
    [
        (
            (
                "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that"
                " in driver: 3.11, PySpark cannot run"
            ),
            "Python in worker has different version: 3.12 than that in driver: 3.11",
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", "No module named 'pyarrow'"),
    ],
)
def test_a_worker_in_which_nothing_of_ours_can_run_is_named_with_what_it_has(meets, said):
    lost = (
        "Lost task 0.3 in stage 1.0 (TID 4) (10.0.0.7 executor 1):"
        " org.apache.spark.api.python.PythonException: "
    )
    with pytest.raises(SparkError) as caught, ErrorTranslator().translating():
        raise PySparkException(lost + meets)
    assert f"10.0.0.7 has a Spark worker that doesn't fit: {said}" in str(caught.value)
    assert not caught.value.transient
    assert "packed environment" in caught.value.hint


def test_a_call_whose_channel_another_thread_has_closed_passes():
    channel = grpc.insecure_channel("127.0.0.1:1")
    call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
    channel.close()
    with pytest.raises(SparkError) as caught, ErrorTranslator().translating():
        call(b"", timeout=5)
    assert caught.value.transient
    with pytest.raises(ValueError, match="other"), ErrorTranslator().translating():
        raise ValueError("other")
