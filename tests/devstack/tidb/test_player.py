import time
from collections import Counter

import pytest

from sluice.devstack.recording import Recording
from sluice.tidb import EtcdClient, PDClient, Registry, TiKVClient, pb
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE, ROLLBACK
from sluice.tidb.tikv import TxnKind
from tests.devstack.cluster_harness import (
    RECORDINGS,
    Journal,
    PumpServer,
    cluster,
    etcd,
    pumps,
    wait_for,
)


@pytest.fixture(scope="module")
def etcd_url(tmp_path_factory):
    with etcd(tmp_path_factory.mktemp("etcd")) as url:
        yield url


def check_causality(journal, recording, until_ts=None):
    """What a pump builds on: a Commit arrives only when its own Prewrite and every one with a
    smaller commit_ts is acknowledged, and at the pump that acknowledged its Prewrite.
    """
    transactions = recording.transactions(until_ts)
    open_commits = sorted((t.commit_ts, t.start_ts) for t in transactions.values() if t.commit_ts)
    acked_at = {}
    owners = {}
    next_open = 0
    for event in journal.events:
        if event.tp == PREWRITE and event.kind == "acked":
            acked_at.setdefault(event.start_ts, event)
            owners.setdefault(event.start_ts, set()).add(event.pump)
        elif event.tp != PREWRITE and event.kind == "got":
            assert event.pump in owners.get(event.start_ts, ()), (
                f"{event} is not at the pump of its prewrite"
            )
            if event.tp == COMMIT:
                while next_open < len(open_commits) and open_commits[next_open][1] in acked_at:
                    next_open += 1
                smallest = open_commits[next_open][0] if next_open < len(open_commits) else None
                assert smallest is None or event.commit_ts < smallest, (
                    f"{event} before the prewrite of {smallest}"
                )


def check_complete(journal, recording, until_ts=None):
    """Every payload of the recording arrived, unchanged."""
    wanted = Counter(r.payload for r in recording.records(until_ts) if not r.fake)
    assert set(wanted) == {event.payload for event in journal.events if event.kind == "acked"}


@pytest.mark.slow
def test_the_shop_is_replayed_as_tidb_would_write_it_with_timestamps_that_never_run_ahead(etcd_url):
    recording = Recording(RECORDINGS / "shop")
    until_ts = recording.label("b_mid").ts
    journal = Journal()
    with (
        cluster(etcd_url, recording.directory) as started,
        pumps(started.url, recording.cluster_id, journal, delay_s=0.02),
        PDClient(started.url, timeout_s=60) as pd,
    ):
        started.post("/replay", strategy="hash", until="b_mid")
        taken = []
        while started.get("/status")["state"] == "replaying":
            acked_before = len(journal.events)
            taken.append((pd.tso(), acked_before))
            taken.append((pd.tso(), acked_before))
            time.sleep(0.05)
        status = started.wait_state("done")
    counts = status["counts"]
    assert (counts["transactions"], counts["done"]) == (5738, 5738)
    assert (counts["committed"], counts["rolled_back"]) == (5672, 66)
    assert counts["retried"] == counts["undelivered"] == counts["refused"] == 0
    assert {e.pump for e in journal.binlogs(PREWRITE)} == {"pump-0", "pump-1"}
    assert len(journal.binlogs(PREWRITE)) == 5738
    assert len(journal.binlogs(COMMIT)) == 5672
    assert len(journal.binlogs(ROLLBACK)) == 66
    check_causality(journal, recording, until_ts)
    check_complete(journal, recording, until_ts)
    check_timestamps(taken, journal, recording.transactions(until_ts))


def check_timestamps(taken, journal, transactions):
    """Each was smaller than the commit_ts of every Prewrite that was acknowledged only after it was
    handed out.

    `taken`: (timestamp, length of the journal just before it was asked for).
    """
    commit_of = {t.start_ts: t.commit_ts for t in transactions.values() if t.commit_ts}
    used = set(commit_of) | set(commit_of.values())
    values = [ts for ts, _ in taken]
    assert len(values) >= 4
    assert values == sorted(set(values))
    assert not used.intersection(values)
    acked_index = {
        e.start_ts: n
        for n, e in enumerate(journal.events)
        if e.tp == PREWRITE and e.kind == "acked"
    }
    for (ts, _), (_, known_later) in zip(taken, taken[2:]):
        late = [c for start, c in commit_of.items() if acked_index[start] >= known_later]
        assert ts < min(late, default=1 << 63)


@pytest.mark.slow
def test_a_cut_at_a_label_sends_whole_transactions_up_to_it_and_time_goes_on_past_it(etcd_url):
    recording = Recording(RECORDINGS / "shop")
    label = recording.label("a_loaded")
    journal = Journal()
    with (
        cluster(etcd_url, recording.directory) as started,
        pumps(started.url, recording.cluster_id, journal),
        PDClient(started.url, timeout_s=60) as pd,
    ):
        started.post("/replay", until="a_loaded")
        status = started.wait_state("done")
        wait_for(lambda: pd.tso() > label.ts, what="a timestamp past the label")
        page = started.get("/commits?limit=7")
        rest = started.get(f"/commits?after={page[-1][0]}")
    check_complete(journal, recording, label.ts)
    check_causality(journal, recording, label.ts)
    assert status["until_ts"] == label.ts
    commits = [entry[0] for entry in page + rest]
    assert commits == sorted(
        t.commit_ts for t in recording.transactions(label.ts).values() if t.commit_ts
    )
    assert len(page) == 7
    assert all(abs(entry[1] / 1000 - time.time()) < 60 for entry in page + rest)


@pytest.mark.slow
def test_transactions_that_lost_their_end_are_decided_in_tikv_and_nowhere_else(etcd_url):
    recording = Recording(RECORDINGS / "orphans")
    journal = Journal()
    with (
        cluster(etcd_url, recording.directory) as started,
        pumps(started.url, recording.cluster_id, journal),
        PDClient(started.url, timeout_s=60) as pd,
        TiKVClient(pd) as tikv,
    ):
        started.post("/replay")
        counts = started.wait_state("done")["counts"]
        unfinished = [t for t in recording.transactions().values() if not t.second]
        assert len(unfinished) == 20
        sent = {e.start_ts for e in journal.events if e.tp != PREWRITE}
        for txn in unfinished:
            assert txn.start_ts not in sent
            status = tikv.mvcc_get(txn.prewrite_key).status(txn.start_ts)
            expected = TxnKind.COMMITTED if txn.commit_ts else TxnKind.ROLLED_BACK
            assert (status.kind, status.commit_ts) == (expected, txn.commit_ts)
        assert max(t.commit_ts for t in unfinished) <= started.get("/status")["newest_commit_ts"]
    assert (counts["committed"], counts["rolled_back"], counts["done"]) == (124, 20, 144)
    check_causality(journal, recording)


@pytest.mark.slow
def test_a_pump_that_dies_and_comes_back_loses_nothing(etcd_url):
    recording = Recording(RECORDINGS / "ddl")
    journal = Journal()
    with (
        cluster(etcd_url, recording.directory) as started,
        EtcdClient(started.url, timeout_s=60) as client,
    ):
        registry = Registry(client)
        with pumps(started.url, recording.cluster_id, journal, delay_s=0.01) as running:
            started.post("/replay")
            wait_for(
                lambda: started.get("/status")["counts"]["committed"] > 100,
                what="a hundred commits",
            )
            running[0].stop()
            wait_for(
                lambda: started.get("/status")["counts"]["committed"] > 600,
                what="commits without that pump",
            )
            running[0] = PumpServer(
                "pump-0", registry, journal, recording.cluster_id, port=running[0].port
            )
            status = started.wait_state("done")
    assert status["counts"]["done"] == len(recording.transactions())
    assert status["counts"]["undelivered"] == 0
    check_complete(journal, recording)
    check_causality(journal, recording)


@pytest.mark.slow
def test_while_no_pump_answers_pd_still_does_and_the_replay_goes_on_when_one_is_back(etcd_url):
    recording = Recording(RECORDINGS / "ddl")
    journal = Journal()
    with (
        cluster(etcd_url, recording.directory) as started,
        pumps(started.url, recording.cluster_id, journal) as running,
        PDClient(started.url, timeout_s=60) as pd,
    ):
        for pump in running:
            pump.refusing = True
        started.post("/replay")
        wait_for(lambda: started.get("/status")["counts"].get("sent"), what="a first prewrite")
        first = min(t.commit_ts for t in recording.transactions().values() if t.commit_ts)
        for _ in range(500):
            assert pd.tso() < first
        assert not journal.events
        for pump in running:
            pump.refusing = False
        assert started.wait_state("done")["counts"]["done"] == len(recording.transactions())
    check_causality(journal, recording)


@pytest.mark.slow
def test_at_a_given_speed_the_recorded_pace_is_kept(etcd_url):
    recording = Recording(RECORDINGS / "orphans")
    moments = [r.start_ts >> 18 for r in recording.records() if r.tp == PREWRITE]
    recorded_s = (max(moments) - min(moments)) / 1000
    journal = Journal()
    with (
        cluster(etcd_url, recording.directory) as started,
        pumps(started.url, recording.cluster_id, journal),
    ):
        began = time.monotonic()
        started.post("/replay", speed=2)
        started.wait_state("done")
        took = time.monotonic() - began
    assert recorded_s / 2 <= took < recorded_s / 2 + 100
    check_causality(journal, recording)


@pytest.mark.slow
def test_a_stopped_replay_rolls_back_what_is_open_and_time_goes_on(etcd_url):
    recording = Recording(RECORDINGS / "shop")
    journal = Journal()
    with (
        cluster(etcd_url, recording.directory) as started,
        pumps(started.url, recording.cluster_id, journal, delay_s=0.01),
        PDClient(started.url, timeout_s=60) as pd,
        TiKVClient(pd) as tikv,
    ):
        started.post("/replay", speed=5)
        wait_for(
            lambda: started.get("/status")["counts"]["committed"] > 200, what="two hundred commits"
        )
        started.post("/stop")
        assert started.get("/status")["state"] == "stopped"
        wait_for(
            lambda: pd.tso() > started.get("/status")["newest_commit_ts"], what="time going on"
        )
        acked = {e.start_ts for e in journal.binlogs(PREWRITE)}
        committed = {entry[0] for entry in started.get("/commits")}
        for start_ts in acked:
            txn = recording.transactions()[start_ts]
            status = tikv.mvcc_get(txn.prewrite_key).status(start_ts)
            assert status.kind != TxnKind.LOCKED
            assert (status.kind == TxnKind.COMMITTED) == (txn.commit_ts in committed)
    check_causality(journal, recording)
    rolled_back = [pb.binlog.Binlog.FromString(e.payload) for e in journal.binlogs(ROLLBACK)]
    assert all(m.commit_ts == 0 for m in rolled_back)
