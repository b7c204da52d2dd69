"""The SQL port beside PD and TiKV: it reads what was played, at the timestamps that PD has handed
out.
"""

import time

import pymysql
import pytest

from sluice.devstack.recording import Recording
from sluice.tidb import PDClient
from tests.devstack.cluster_harness import RECORDINGS, Journal, cluster, etcd, pumps

SHOP = RECORDINGS / "shop"


@pytest.fixture
def started(tmp_path):
    with (
        etcd(tmp_path) as url,
        cluster(url, SHOP) as made,
        pumps(made.url, Recording(SHOP).cluster_id, Journal()),
    ):
        yield made


def select(started, statement, ts=None):
    with (
        pymysql.connect(host="127.0.0.1", port=started.sql, user="root") as connection,
        connection.cursor() as cursor,
    ):
        if ts is not None:
            cursor.execute(f"SET @@tidb_snapshot = '{ts}'")
        cursor.execute(statement)
        return cursor.fetchall()


@pytest.mark.slow
def test_reads_agree_with_what_was_played_and_with_pds_timestamps(started):
    wanted = {label.name: label for label in Recording(SHOP).labels}
    before = select(started, "SHOW MASTER STATUS")[0][1]
    assert int(before) < wanted["a_loaded"].ts
    assert ("bank",) not in select(started, "SHOW DATABASES")
    started.post("/replay", until="b_mid")
    with PDClient(started.url) as pd:
        during = []
        while started.get("/status")["state"] == "replaying":
            ts = pd.tso()
            if select(
                started,
                "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'ledger'",
                ts,
            )[0][0]:
                during.append((ts, select(started, "SELECT COUNT(*) FROM bank.ledger", ts)))
            time.sleep(0.05)
        started.wait_state("done")
        for ts, found in during[-5:]:
            assert select(started, "SELECT COUNT(*) FROM bank.ledger", ts) == found
        assert select(started, "SELECT COUNT(*) FROM bank.ledger") == (
            (wanted["b_mid"].tables["bank.ledger"],),
        )
        # What the recording has later never happened here, however late it gets.
        late = pd.tso() + (3600 * 1000 << 18)
        with pytest.raises(pymysql.MySQLError, match="future"):
            select(started, "SELECT 1", late)


@pytest.mark.slow
def test_a_service_safe_point_holds_the_gc_until_it_is_given_back(started):
    started.post("/replay", until="a_loaded")
    started.wait_state("done")
    with PDClient(started.url) as pd:
        position = int(select(started, "SHOW MASTER STATUS")[0][1])
        assert pd.update_service_gc_safe_point("copy", 600, position) == position
        later = pd.tso() + 1000
        assert started.post("/gc", safe_point=later) == {"safe_point": position}
        assert pd.get_gc_safe_point() == position
        assert select(started, "SELECT COUNT(*) FROM bank.ledger", position) is not None
        pd.update_service_gc_safe_point("copy", 0, 0)
        assert started.post("/gc", safe_point=later) == {"safe_point": later}
        with pytest.raises(pymysql.MySQLError) as caught:
            select(started, "SELECT COUNT(*) FROM bank.ledger", position)
    assert caught.value.args[0] == 8055
