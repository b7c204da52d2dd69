"""What a client can't do that says how somebody else's transaction ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from sluice.pump_service.grpc_fastpath import FastPathClient
from tests.pump_service.pumpkit import Client, Etcd, binlog, request
from tests.pump_service.tidb_stage import Stage, staged

_COMMIT, _ROLLBACK = 1, 2


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("verdicts")
    etcd = Etcd(folder)
    with staged(etcd, folder / "pump") as made:
        made.tidb("start", ttl_s=45)
        yield made
    etcd.stop()


@pytest.fixture
def hostile(stage: Stage) -> Iterator[Client]:
    """A connection that sent no Prewrite."""
    client = Client(stage.pump.address)
    yield client
    client.close()


def begin(stage: Stage, key: str) -> int:
    start_ts = stage.tidb("begin", key=key)["start_ts"]
    assert stage.tidb("prewrite", start_ts=start_ts)["prewritten"]
    return start_ts


def commit(stage: Stage, start_ts: int) -> int:
    return stage.tidb("commit", start_ts=start_ts)["commit_ts"]


def another(stage: Stage) -> tuple[int, int]:
    """start_ts and commit_ts of a transaction behind all that there is."""
    start_ts = begin(stage, "after")
    return start_ts, commit(stage, start_ts)


def received(stage: Stage, after: int, last_start: int, last_commit: int) -> list[tuple[int, int]]:
    """(start_ts, commit_ts) of what a reader gets behind `after` and before the transaction
    `last_start`.
    """
    count, found = 0, [(0, 0)]
    while found[-1] != (last_start, last_commit):
        count += 1
        found = [(b.start_ts, b.commit_ts) for b in stage.reader.pull_commits(after, count)]
    return found[:-1]


def test_a_second_commit_at_another_timestamp_is_not_believed(
    stage: Stage, hostile: Client
) -> None:
    start_ts = begin(stage, "twice")
    commit_ts = commit(stage, start_ts)
    hostile.write(binlog(_COMMIT, start_ts, stage.pd.tso(), key=b"twice"))
    last = another(stage)
    assert received(stage, start_ts, *last) == [(start_ts, commit_ts)]
    stage.pump.kill()
    stage.pump.start()
    assert received(stage, start_ts, *last) == [(start_ts, commit_ts)]
    assert f"transaction {start_ts}" in stage.pump.text()


def test_the_same_commit_again_changes_nothing(stage: Stage, hostile: Client) -> None:
    start_ts = begin(stage, "again")
    commit_ts = commit(stage, start_ts)
    for _ in range(3):
        hostile.write(binlog(_COMMIT, start_ts, commit_ts, key=b"again"))
    assert received(stage, start_ts, *another(stage)) == [(start_ts, commit_ts)]


def test_a_rollback_hides_no_transaction_that_committed(stage: Stage, hostile: Client) -> None:
    start_ts = begin(stage, "rolled back")
    hostile.write(binlog(_ROLLBACK, start_ts, key=b"rolled back"))
    commit_ts = commit(stage, start_ts)
    assert received(stage, start_ts, *another(stage)) == [(start_ts, commit_ts)]


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("when", ["open", "open before a restart", "committed", "long ago"])
def test_a_second_prewrite_with_other_bytes_is_refused_and_readers_get_the_first(
    stage: Stage, hostile: Client, when: str
) -> None:
    start_ts = begin(stage, "first")
    commit_ts = commit(stage, start_ts) if when in ("committed", "long ago") else 0
    if when in ("open before a restart", "long ago"):
        stage.pump.kill()
        stage.pump.start()
    forged = binlog(0, start_ts, value=b"forged", key=b"first")
    with pytest.raises(grpc.RpcError, match=f"transaction {start_ts} has a Prewrite of"):
        hostile.write(forged)
    commit_ts = commit_ts or commit(stage, start_ts)
    (found,) = stage.reader.pull_commits(start_ts, 1)
    assert (found.start_ts, found.commit_ts) == (start_ts, commit_ts)
    assert found.prewrite_value != b"forged"


def test_the_other_calls_of_a_read_are_answered_beside_one_that_is_refused(stage: Stage) -> None:
    start_ts = begin(stage, "beside")
    host, port = stage.pump.address.rsplit(":", 1)
    client = FastPathClient(host, int(port))
    fresh = [stage.pd.tso(), stage.pd.tso()]
    payloads = [binlog(0, ts, value=b"forged") for ts in (fresh[0], start_ts, fresh[1])]
    streams = client.send([request(payload, stage.pd.cluster_id) for payload in payloads])
    answers: dict[int, str] = {}
    while len(answers) < len(streams):
        answers.update(client.receive())
    assert [bool(answers[stream]) for stream in streams] == [False, True, False]
    assert f"transaction {start_ts}" in answers[streams[1]]
    client.send([request(binlog(2, ts), stage.pd.cluster_id) for ts in fresh])
    client.receive()
    client.close()
    commit(stage, start_ts)


@pytest.mark.parametrize("what", ["a fake binlog", "a rollback with a commit_ts"])
def test_what_would_take_a_transactions_place_in_the_index_is_refused(
    stage: Stage, hostile: Client, what: str
) -> None:
    start_ts = begin(stage, "replaced")
    commit_ts = commit(stage, start_ts)
    start = commit_ts if what == "a fake binlog" else commit_ts - 1
    with pytest.raises(grpc.RpcError, match="no valid Binlog"):
        hostile.write(binlog(_ROLLBACK, start, commit_ts))
    assert received(stage, start_ts, *another(stage)) == [(start_ts, commit_ts)]
