"""A transaction that two pumps have with different changes stops landing, however it is read."""

from __future__ import annotations

import pytest

from sluice.etl.landing._job import LandingJob
from sluice.etl.landing.extract import STATS_SCHEMA, TASK_SCHEMA, BinlogDecodeError, PumpRange
from sluice.etl.landing.extract.copies import settle_copies
from sluice.etl.landing.extract.worker import LandRanges
from sluice.etl.landing.planner import WindowPlan
from sluice.relay import RelayLog, read_parts
from sluice.tidb import pb
from sluice.tidb.rows import encode_insert
from tests.etl.landing.extract.test_explode import INSERT, mutation, prewrite
from tests.etl.landing.extract.test_together import ITEM, transaction
from tests.etl.window_pumps import CLUSTER_ID, WindowPump

ROW = encode_insert(ITEM, {"id": 30})
OTHER_ROW = encode_insert(ITEM, {"id": 31})


def ddl(query):
    return pb.binlog.Binlog(
        tp=0, start_ts=29, ddl_query=query, ddl_job_id=8, ddl_schema_state=5
    ).SerializeToString()


PAYLOADS = {
    "a row": prewrite(29, mutation(11, (INSERT, ROW))),
    "another row": prewrite(29, mutation(11, (INSERT, OTHER_ROW))),
    "two rows": prewrite(29, mutation(11, (INSERT, ROW), (INSERT, OTHER_ROW))),
    "a row of another table": prewrite(29, mutation(12, (INSERT, ROW))),
    "no row": prewrite(29, mutation(11)),
    "a DDL": ddl(b"CREATE TABLE a (b int)"),
    "another DDL": ddl(b"CREATE TABLE b (b int)"),
}
CASES = [(one, other) for one in PAYLOADS for other in PAYLOADS]


@pytest.fixture(scope="module")
def pumps():
    found = [WindowPump("a"), WindowPump("b")]
    yield found
    for pump in found:
        pump.stop()


@pytest.fixture(params=["small", "large"])
def land(request, pumps, tmp_path):
    """Lands the window (0, 100] of these payloads of one transaction: the relay log's rows."""
    relay = RelayLog.open(tmp_path.as_uri())
    work = LandRanges(relay.url, CLUSTER_ID)

    def function(tasks, timeout_s, *, alone, is_small, label):
        rows = tasks.to_pylist()
        groups = [rows] if is_small else [[row] for row in rows]
        for number, group in enumerate(groups):
            table = tasks.slice(number if not is_small else 0, len(group))
            yield from work(table.to_batches())

    def run(one, other, skips=()):
        for pump, payload, ts in zip(pumps, (one, other), (10, 20), strict=True):
            pump.rows = [transaction(ts), (30, 29, payload), transaction(ts + 50)]
        ranges = tuple(PumpRange(pump.status.host, 0, 100) for pump in pumps)
        plan = WindowPlan(0, 100, 100, ranges, 6, 600, limited=request.param == "large")
        result = LandingJob(function).run(plan, f"t{len(list(tmp_path.rglob('*')))}", 1, skips)
        bounds = (0, 100, "u")
        parts = settle_copies(relay, result.shared, result.parts, bounds, skips)
        assert (len(result.parts) == 1) == (request.param == "small")
        return read_parts(relay.storage, parts)["commit_ts"].to_pylist(), result.ddls

    assert TASK_SCHEMA and STATS_SCHEMA
    return run


@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize(("one", "other"), CASES)
def test_copies_with_different_changes_stop_landing_with_both_pumps_and_the_transaction(
    land, pumps, one, other
):
    if one == other:
        times, ddls = land(PAYLOADS[one], PAYLOADS[other])
        rows = {"no row": 0, "two rows": 2}.get(one, 0 if "DDL" in one else 1)
        assert times == [10, 20, *[30] * rows, 60, 70]
        assert len(ddls) == ("DDL" in one)
        return
    with pytest.raises(BinlogDecodeError, match="transaction 29, commit_ts 30") as raised:
        land(PAYLOADS[one], PAYLOADS[other])
    text = str(raised.value)
    assert all(pump.status.host in text for pump in pumps)
    assert "`sluice txn skip 30`" in text


@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize(("one", "other"), [pair for pair in CASES if pair[0] != pair[1]])
def test_what_an_operator_skips_is_landed_as_the_first_pump_has_it(land, one, other):
    times, ddls = land(PAYLOADS[one], PAYLOADS[other], skips=(30,))
    rows = {"no row": 0, "two rows": 2}.get(one, 0 if "DDL" in one else 1)
    assert times == [10, 20, *[30] * rows, 60, 70]
    assert [each.query for each in ddls] == (
        [f"CREATE TABLE {'a' if one == 'a DDL' else 'b'} (b int)"] if "DDL" in one else []
    )
