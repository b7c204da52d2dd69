"""What WriteBinlog's bytes mean doesn't depend on the requests before them."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.ingest import AdmissionRules, BinlogIngest, WriteRejected
from sluice.pump_service.metrics import PumpMetrics
from sluice.pump_service.store import Record
from sluice.tidb import pb
from tests.examples import examples
from tests.pump_service.served_lane import no_origins, time_limit

CLUSTER = 6_800_000_000_000_000_000
_START = 400_000_000_000_000_000


def _ingest() -> BinlogIngest:
    ingest = BinlogIngest(
        AdmissionRules(CLUSTER, lambda: "online", time_limit()), None, PumpMetrics(), no_origins()
    )  # type: ignore[arg-type]
    ingest._check_space = lambda: None  # type: ignore[method-assign] # there is no store: nothing is written here
    return ingest


def _answer(ingest: BinlogIngest, request: bytes) -> Record | str | None:
    """What becomes of a request, which lies somewhere in a read."""
    try:
        return ingest.admit(b"before" + request + b"behind", 6, 6 + len(request))
    except WriteRejected as refused:
        # the clock goes on between two of them
        return re.sub(r"lies [\d.]+ s ahead", "lies ahead", refused.text)


def _request(tp: int, start: int, commit: int, value: bytes, cluster: int) -> bytes:
    binlog = pb.binlog.Binlog(tp=tp, start_ts=start, commit_ts=commit, prewrite_value=value)  # type: ignore[arg-type]
    return pb.pump.WriteBinlogReq(
        clusterID=cluster, payload=binlog.SerializeToString()
    ).SerializeToString()


_REQUESTS = st.builds(
    _request,
    st.integers(0, 2),
    st.integers(_START, _START + 1000),
    st.integers(0, 3).map(lambda n: n and _START + 500 * n),
    st.sampled_from((0, 1, 90, 100, 127, 128, 5000)).map(bytes),
    st.sampled_from((CLUSTER, CLUSTER, CLUSTER, CLUSTER + 1)),
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    request = bytearray(draw(_REQUESTS))
    for _ in range(draw(st.integers(0, 2))):
        request[draw(st.integers(0, min(len(request) - 1, 60)))] = draw(st.integers(0, 255))
    return bytes(request[: draw(st.sampled_from((len(request), len(request), len(request) - 1)))])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(_damaged(), min_size=1, max_size=8))
def test_a_request_means_the_same_whatever_came_before_it(requests: list[bytes]) -> None:
    seasoned = _ingest()
    for request in requests:
        assert _answer(seasoned, request) == _answer(_ingest(), request)


def test_a_request_of_another_cluster_is_refused_though_one_of_its_length_was_taken() -> None:
    ingest = _ingest()
    right, wrong = (_request(0, _START, 0, b"v", cluster) for cluster in (CLUSTER, CLUSTER + 1))
    assert len(right) == len(wrong)
    for _ in range(2):
        assert isinstance(_answer(ingest, right), Record)
        assert _answer(ingest, wrong) == f"cluster ID are mismatch, {CLUSTER + 1} vs {CLUSTER}"
