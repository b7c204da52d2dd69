"""What pullers get, put together from bytes: the same as protobuf makes of it."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service import kernel
from sluice.pump_service.calls.pulls import joined
from sluice.pump_service.kernel import plain
from sluice.pump_service.store.binlog_head import merge
from sluice.tidb import pb

TS = st.one_of(st.integers(1, 300), st.integers(2**40, 2**41), st.integers(2**57, 2**63 - 10))
KEYS = st.sampled_from([b"", b"k", b"\x38\x00\x40\x00", b"k" * 127, b"k" * 128, b"*\x00"])
VALUES = st.one_of(st.binary(max_size=40), st.just(b"v" * 20_000), st.just(b"\x38\x00\x40\x00"))


def _binlog(tp, start, commit, key, value, ddl):
    message = pb.binlog.Binlog(
        tp=tp,
        start_ts=start,
        commit_ts=commit,
        prewrite_key=key,
        ddl_job_id=ddl,
        ddl_schema_state=ddl,
    )
    if value is not None:
        message.prewrite_value = value
    if ddl:
        message.ddl_query = b"create table t"
    return message


@given(TS, KEYS, VALUES, st.sampled_from([0, 9]), st.booleans())
def test_a_merged_binlog_is_the_commit_with_its_prewrites_value_and_ddl(
    start, key, value, ddl, keyless_commit
):
    prewrite = _binlog(0, start, 0, key, value, ddl)
    commit = _binlog(1, start, start + 3, b"" if keyless_commit else key, None, ddl)
    merged = pb.binlog.Binlog.FromString(
        merge(commit.SerializeToString(), prewrite.SerializeToString())
    )
    expected = pb.binlog.Binlog()
    expected.CopyFrom(commit)
    expected.prewrite_value = value
    assert merged == expected
    assert (
        merge(commit.SerializeToString(), prewrite.SerializeToString())
        == expected.SerializeToString()
    )
    for usual in (kernel.merged, plain.merged):
        assert usual(commit.SerializeToString(), prewrite.SerializeToString()) in (
            None,
            expected.SerializeToString(),
        )


@given(TS, KEYS, VALUES)
def test_the_message_of_a_pull_is_the_one_that_protobuf_makes(start, key, value):
    payload = _binlog(1, start, start + 3, key, value, 0).SerializeToString()
    response = pb.pump.PullBinlogResp()
    response.entity.pos.SetInParent()
    response.entity.payload = payload
    response.entity.meta.startTs, response.entity.meta.commitTs = start, start + 3
    message = response.SerializeToString()
    for encode in (kernel.pull_message, plain.pull_message):
        assert (
            encode(payload, start, start + 3) == b"\0" + len(message).to_bytes(4, "big") + message
        )


def test_messages_leave_in_their_order_and_a_large_one_is_not_copied() -> None:
    large = bytes(1 << 20)
    parts = list(joined([b"a", b"b", large, b"c", large, large, b"d"]))
    assert parts == [b"ab", large, b"c", large, large, b"d"]
    assert all(part is large for part in parts if len(part) > 2)
    assert list(joined([])) == []
