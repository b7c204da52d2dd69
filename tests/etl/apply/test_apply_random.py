"""Random histories end in the same rows as executing them one by one, however they are cut and
whatever dies on the way.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.changes.server_errors import NO_SUCH_TABLE, UNKNOWN_DATABASE
from sluice.etl.changes.write_plans.small_batches import MAX_SMALL_CHANGES
from sluice.etl.operate import accept
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import CREATE, TABLES, History
from tests.examples import examples


def fresh(server: MariaDBServer) -> pymysql.connections.Connection:
    server.empty()
    connection = server.connect()
    for statement in CREATE:
        connection.cursor().execute(statement)
    return connection


def rows_of(connection: pymysql.connections.Connection, name: str) -> list[tuple]:
    columns = ", ".join(
        f"`{c.name}`+0e0" if c.kind == "float" else f"`{c.name}`" for c in TABLES[name].columns
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM rnd.`{name}`")
        return sorted(cursor.fetchall(), key=repr)


MODES = pytest.mark.parametrize("mode", ["atomic", "parallel"])


def settings_for(server: MariaDBServer, url: str, max_rows: int, mode: str = "atomic") -> Settings:
    return Settings(
        Upstream("unused"), Relay(url), server.downstream, apply=Apply(mode, 3, max_rows)
    )


@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.integers(0, 2**32),
    st.integers(5, 120),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.sampled_from([1, 20, 100_000]),
    st.sampled_from([3, 100_000]),
    st.sampled_from([0, 5, MAX_SMALL_CHANGES]),
    st.sampled_from([1, 3, 100]),
)
def test_any_history_in_any_windows_ends_like_the_model(
    mariadb: MariaDBServer,
    mode: str,
    seed: int,
    count: int,
    sizes: list[int],
    max_rows: int,
    portion: int,
    few: int,
    cut: int,
) -> None:
    """`portion`: so many rows are decoded at a time.

    `few`: so many changes of a table aren't divided; `cut`: where they are cut a downstream
    transaction has so many tables.
    """
    history = History(seed)
    history.grow(count)
    with contextlib.closing(fresh(mariadb)) as connection, tempfile.TemporaryDirectory() as folder:
        relay = history.land(f"file://{folder}", sizes)
        last = relay.last()
        if last is None:
            return
        config = settings_for(mariadb, f"file://{folder}", max_rows, mode)
        with (
            mock.patch("sluice.etl.apply._adaptive_limits._BASE_CUT_TABLES", cut),
            mock.patch("sluice.etl.changes.planning._transaction_cuts._DOUBLE_COST_TABLES", 1e-9),
            mock.patch("sluice.etl.changes.write_plans.small_batches.MAX_SMALL_CHANGES", few),
            mock.patch("sluice.etl.changes.write_plans.raw_changes.DECODE_BATCH_ROWS", portion),
            mock.patch("sluice.etl.changes.write_plans.table_changes.DECODE_BATCH_ROWS", portion),
        ):
            run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
        for name in TABLES:
            assert rows_of(connection, name) == history.expected(name), name


_CHILD = """
import itertools, os, signal, sys
import pymysql.connections
from sluice.etl.apply import run_apply
from tests.etl.preparing import local_preparer
from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
url, mode = sys.argv[1], sys.argv[4]
port, until, last = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
packets, write = itertools.count(1), pymysql.connections.Connection._write_bytes

def written(connection, data):
    number = next(packets)
    if last and number > abs(last):
        os.kill(os.getpid(), signal.SIGKILL)
    write(connection, data)
    if number == last:  # the answer isn't waited for
        os.kill(os.getpid(), signal.SIGKILL)

pymysql.connections.Connection._write_bytes = written
downstream, apply = Downstream("127.0.0.1", port), Apply(mode, 3, 60)
config = Settings(Upstream("unused"), Relay(url), downstream, apply=apply)
run_apply(config, until_ts=until, run_seconds=240, prepare=local_preparer(config))
"""


@pytest.mark.parametrize(
    "mode",
    [pytest.param("atomic", marks=[pytest.mark.slow, pytest.mark.beyond_ci]), "parallel"],
)
def test_a_process_killed_at_random_points_loses_and_repeats_nothing(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    history = History(4)
    history.grow(1800 if mode == "atomic" else 250)
    connection = fresh(mariadb)
    url = f"file://{tmp_path}/relay"
    last = history.land(url, [5, 17, 3]).last()
    assert last is not None
    root = Path(__file__).parents[3]
    rng = random.Random(1)

    def ends(packets: int) -> int:
        """A process that dies after so many writes to the server, with the last one's answer if
        negative.
        """
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _CHILD,
                url,
                str(mariadb.port),
                str(last.hi),
                mode,
                str(packets),
            ],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        return done.returncode

    for _ in range(examples(5)):
        # A transaction of mode atomic is two of them, setting up a session some thirty.
        assert (
            ends(rng.randint(*((35, 50) if mode == "atomic" else (40, 160))) * rng.choice([1, -1]))
            == -signal.SIGKILL
        )
    assert 0 < checkpoint(connection) < last.hi
    assert ends(0) == 0
    assert checkpoint(connection) == last.hi
    for name in TABLES:
        assert rows_of(connection, name) == history.expected(name), name


def checkpoint(connection: pymysql.connections.Connection) -> int:
    import json

    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        except pymysql.err.MySQLError as error:
            if error.args[0] not in (UNKNOWN_DATABASE, NO_SUCH_TABLE):
                raise
            return 0
        row = cursor.fetchone()
        return json.loads(row[0])["commitTS"] if row else 0


@pytest.mark.slow
@MODES
def test_a_downstream_killed_in_the_middle_is_waited_for(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    history = History(5)
    history.grow(1500)
    fresh(mariadb).close()
    url = f"file://{tmp_path}/relay"
    last = history.land(url, [4]).last()
    assert last is not None
    config = settings_for(mariadb, url, 20, mode)
    seen: list[BatchReport] = []

    def on_batch(report: BatchReport) -> None:
        seen.append(report)
        if len(seen) in (10, 50):
            mariadb.kill()
            threading.Timer(0.3, mariadb.start).start()

    summary = run_apply(
        config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config), on_batch=on_batch
    )
    assert summary.retries >= 2
    assert summary.checkpoint == last.hi
    connection = mariadb.connect()
    for name in TABLES:
        assert rows_of(connection, name) == history.expected(name), name


@pytest.mark.quick_cases("plain-parallel]", "heap-parallel]")
@MODES
@pytest.mark.parametrize(
    ("table", "tamper", "text"),
    [
        (
            "plain",
            "DELETE FROM rnd.plain WHERE id = (SELECT min(id) FROM (SELECT id FROM rnd.plain) x)",
            r"rnd\.plain",
        ),
        (
            "account",
            (
                "DELETE FROM rnd.account WHERE id = (SELECT min(id) FROM (SELECT id FROM"
                " rnd.account) x)"
            ),
            r"rnd\.account",
        ),
        ("heap", "UPDATE rnd.heap SET t = 'tampered'", r"rnd\.heap"),
    ],
)
def test_a_downstream_that_somebody_else_changed_is_an_error_that_names_table_and_key(
    mariadb: MariaDBServer, tmp_path: Path, mode: str, table: str, tamper: str, text: str
) -> None:
    history = History(11)
    history.grow(60)
    connection = fresh(mariadb)
    url = f"file://{tmp_path}/relay"
    relay = history.land(url, [60])
    middle = relay.last()
    assert middle is not None
    config = settings_for(mariadb, url, 10_000, mode)
    run_apply(config, until_ts=middle.hi, run_seconds=240, prepare=local_preparer(config))
    connection.cursor().execute(tamper)
    kept = rows_of(connection, table)
    # Every row is changed or removed next, so whatever was tampered with is met.
    later = History(12)
    later.rows = history.rows
    later._ts = history._ts
    later._next = history._next
    for name in TABLES:
        for rowid in list(later.rows[name]):
            changes: list = []
            from sluice.tidb.rows import ROWID_NAME, encode_delete

            changes.append(
                (
                    name,
                    2,
                    encode_delete(TABLES[name], later.rows[name].pop(rowid) | {ROWID_NAME: rowid}),
                )
            )
            later._ts += 1
            later.transactions.append((later._ts, changes))
    land_after(later, url, middle.hi)
    final = relay.last()
    assert final is not None
    keyed_parallel = mode == "parallel" and table != "heap"
    for _ in range(2):
        with pytest.raises(ApplyError, match=text) as caught:
            run_apply(config, until_ts=final.hi, run_seconds=240, prepare=local_preparer(config))
        assert "missing: " in str(caught.value)
        assert "commit_ts" in str(caught.value)
    # others of the flight are committed; an operator lets it be written all the same
    if keyed_parallel:
        accept(config, re.search(r"sluice accept (\w+)", str(caught.value))[1])
        run_apply(config, until_ts=final.hi, run_seconds=240, prepare=local_preparer(config))
        assert rows_of(connection, table) == []
        return
    assert rows_of(connection, table) == kept, "nothing of the batch was committed"
    assert checkpoint(connection) == middle.hi


def land_after(history: History, url: str, lo: int) -> None:
    """One more window with all of a history's transactions, behind `lo`."""
    import pyarrow as pa

    from sluice.relay import PART_SCHEMA, RelayLog, WindowRecord

    relay = RelayLog.open(url)
    rows = [
        (ts, ts - 1, n, TABLES[name].id, 1, kind, row)
        for ts, changes in history.transactions
        for n, (name, kind, row) in enumerate(changes)
    ]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(zip(*rows), PART_SCHEMA)], schema=PART_SCHEMA
    )
    hi = history.transactions[-1][0]
    part = relay.write_part(lo, hi, "t", 1, [batch])
    assert part is not None
    relay.commit(
        WindowRecord(
            lo,
            hi,
            7,
            "t",
            0,
            len(rows),
            len(rows),
            1,
            (part,),
            {str(t.id): t.to_json() for t in TABLES.values()},
        )
    )
