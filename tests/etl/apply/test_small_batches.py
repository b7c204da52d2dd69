"""While Spark is away only what is little work is prepared in the task's own process."""

import pytest

from sluice.etl.apply import prepare_windows
from sluice.etl.apply.prepare_windows import SparkPreparer
from sluice.etl.changes.planning import BatchPayload, PrepareOptions
from sluice.etl.settings import Spark
from sluice.etl.spark.errors import SparkUnavailableError, WorkerError
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay import Part, WindowRecord


@pytest.fixture
def preparer(tmp_path, monkeypatch):
    """Its relay log holds nothing, and nobody listens where its Spark should be, as it has been
    told.
    """
    monkeypatch.setattr(prepare_windows, "_CONNECT_TIMEOUT_S", 0)
    preparer = SparkPreparer(
        SessionTarget(Spark("sc://127.0.0.1:1"), "apply", tmp_path.as_uri()), PrepareOptions()
    )
    with pytest.raises(SparkUnavailableError):
        list(preparer(BatchPayload()))
    yield preparer
    preparer.close()


def batch(size: int, changes: int) -> BatchPayload:
    part = Part("parts/1", changes, 1, size, 0, 2, 2)
    return BatchPayload.from_windows([WindowRecord(1, 2, 7, "t", 0, 1, changes, 0, (part,))])


def test_little_is_prepared_here(preparer):
    with pytest.raises(WorkerError, match=r"parts/1.*\(in this process, as Spark is away"):
        list(preparer(batch(1_000, 10)))


@pytest.mark.parametrize(
    "much", [batch(2**20 + 1, 10), batch(1_000, 20_001)], ids=["bytes", "rows that pack well"]
)
def test_much_waits_for_spark(preparer, much):
    with pytest.raises(SparkUnavailableError):
        list(preparer(much))
