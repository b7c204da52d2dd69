"""Going on from a checkpoint that a Drainer left in the middle of its work: what it had done beyond
makes no difference.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import Control
from sluice.tidb.ddl_actions import Action
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences
from tests.etl.story import Story, table
from tests.examples import examples

KEYED = [name for name in TABLES if name not in ("heap", "parted")]


def leave_checkpoint(
    connection, commit_ts: int, consistent: bool = False, cluster_id: int = 7, **more
) -> None:
    """The row as a Drainer writes it."""
    text = json.dumps(
        {"consistent": consistent, "commitTS": commit_ts, "ts-map": {}, "schema-version": 0} | more
    )
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS tidb_binlog")
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS tidb_binlog.checkpoint(clusterID bigint unsigned primary"
            " key, checkPoint MEDIUMTEXT)"
        )
        cursor.execute("REPLACE INTO tidb_binlog.checkpoint VALUES (%s, %s)", (cluster_id, text))


def forget(url: str) -> None:
    """As if nothing had been applied from this relay log yet: a Drainer was at work before."""
    Path(url.removeprefix("file://"), "downstream.json").unlink(missing_ok=True)


def read_checkpoint(connection) -> dict:
    with connection.cursor() as cursor:
        cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        return json.loads(cursor.fetchone()[0])


def fill(connection, name: str, rows) -> None:
    columns = [column.name for column in TABLES[name].columns]
    with connection.cursor() as cursor:
        for row in rows:
            names = ", ".join(f"`{c}`" for c in columns)
            cursor.execute(
                f"INSERT INTO rnd.`{name}` ({names}) VALUES ({', '.join(['%s'] * len(columns))})",
                [row[c] for c in columns],
            )


class Torn:
    """A history, and a downstream as a Drainer leaves it that breaks off: complete through
    `checkpoint`, and every table, in `plain` every row, some way further, at most through `ahead`.
    """

    def __init__(self, seed: int, before: int, beyond: int, after: int) -> None:
        self.history = History(seed)
        states, marks = [copy.deepcopy(self.history.rows)], []
        for count in (before, beyond, after):
            for _ in range(count):
                known = len(self.history.transactions)
                self.history.grow(1)
                for name in set(TABLES) - set(KEYED):  # nothing tells their rows apart
                    self.history.rows[name].clear()
                for _, changes in self.history.transactions[known:]:
                    changes[:] = [change for change in changes if change[0] in KEYED]
                    (
                        states.append(copy.deepcopy(self.history.rows))
                        if changes
                        else self.history.transactions.pop()
                    )
            marks.append(len(self.history.transactions))
        first, last, _ = marks
        stamps = [(1 << 40) - 5, *(ts for ts, _ in self.history.transactions)]
        self.checkpoint, self.ahead = stamps[first], stamps[last]
        rng = random.Random(seed)
        self.rows = {name: list(states[rng.randint(first, last)][name].values()) for name in KEYED}
        reached = {i: rng.randint(first, last) for i in range(10)}
        found = {
            i: [r for r in states[reached[i]]["plain"].values() if r["id"] == i] for i in reached
        }
        self.rows["plain"] = [row for rows in found.values() for row in rows]


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 20),
    st.integers(1, 30),
    st.sampled_from([1, 20, 100_000]),
    st.sampled_from(["atomic", "parallel"]),
)
def test_a_torn_downstream_ends_like_the_model(
    mariadb: MariaDBServer,
    seed: int,
    before: int,
    beyond: int,
    after: int,
    size: int,
    max_rows: int,
    mode: str,
) -> None:
    torn = Torn(seed, before, beyond, after)
    with contextlib.closing(fresh(mariadb)) as connection, tempfile.TemporaryDirectory() as folder:
        for name, rows in torn.rows.items():
            fill(connection, name, rows)
        relay = torn.history.land(f"file://{folder}", [size])
        last = relay.last()
        if last is None:
            return
        leave_checkpoint(connection, torn.checkpoint, sluice={"safe-until": torn.ahead})
        config = Settings(
            Upstream("unused"),
            Relay(f"file://{folder}"),
            mariadb.downstream,
            apply=Apply(max_rows=max_rows, mode=mode),
        )
        run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
        for name in KEYED:
            assert rows_of(connection, name) == torn.history.expected(name), name
        if last.hi > torn.checkpoint:
            left = read_checkpoint(connection)
            assert set(left.pop("sluice")) == {"owner", "process"}
            assert left == {
                "consistent": True,
                "commitTS": last.hi,
                "ts-map": {},
                "schema-version": 1,
            }


def test_without_safe_mode_a_torn_downstream_is_an_error(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    torn = Torn(3, 30, 30, 0)
    connection = fresh(mariadb)
    for name, rows in torn.rows.items():
        fill(connection, name, rows)
    last = torn.history.land(f"file://{tmp_path}", [20]).last()
    leave_checkpoint(connection, torn.checkpoint, consistent=True)
    config = Settings(Upstream("unused"), Relay(f"file://{tmp_path}"), mariadb.downstream)
    with pytest.raises(ApplyError):
        run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))


def test_how_far_safe_mode_goes_is_asked_of_pd_and_kept_until_it_is_passed(
    mariadb: MariaDBServer, etcd_url: str, tmp_path: Path, monkeypatch
) -> None:
    torn = Torn(5, 20, 20, 20)
    connection = fresh(mariadb)
    for name, rows in torn.rows.items():
        fill(connection, name, rows)
    relay = torn.history.land(f"file://{tmp_path}", [5])
    last = relay.last()
    leave_checkpoint(
        connection, torn.checkpoint, **{"ts-map": {"primary-ts": 1, "secondary-ts": 2}}
    )
    asked = []

    class PD:
        def __init__(self, urls, tls=None):
            asked.append(urls)

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

        def tso(self):
            return torn.ahead + 1

    monkeypatch.setattr("sluice.etl.downstream.sinks.mysql.PDClient", PD)
    config = Settings(
        Upstream(etcd_url), Relay(f"file://{tmp_path}"), mariadb.downstream, apply=Apply(max_rows=1)
    )
    on_the_way = []

    def stop_halfway(report) -> None:
        on_the_way.append(read_checkpoint(connection))

    run_apply(
        config,
        until_ts=torn.checkpoint + 1,
        run_seconds=240,
        prepare=local_preparer(config),
        on_batch=stop_halfway,
    )
    run_apply(
        config,
        until_ts=last.hi,
        run_seconds=240,
        prepare=local_preparer(config),
        on_batch=stop_halfway,
    )
    assert asked == [etcd_url]
    for found in on_the_way:
        if found["commitTS"] <= torn.ahead:
            assert not found["consistent"] and found["sluice"]["safe-until"] == torn.ahead + 1
        else:
            assert found["consistent"] and "safe-until" not in found["sluice"]
        assert found["ts-map"] == {}, (
            "what a Drainer measured at another commit_ts compares the wrong snapshots"
        )
    assert {found["consistent"] for found in on_the_way} == {True, False}
    for name in KEYED:
        assert rows_of(connection, name) == torn.history.expected(name), name


@pytest.mark.quick_cases(every=2)
@pytest.mark.parametrize("partitioned", [False, True])
def test_rows_of_a_table_without_a_key_are_written_when_none_of_them_is_there_and_refused_otherwise(
    mariadb: MariaDBServer, tmp_path: Path, partitioned: bool
) -> None:
    history = History(8)
    while not history.rows["heap"]:
        history.grow(1)
    end = history.transactions[-1][0]
    url = f"file://{tmp_path}"
    last = history.land(url, [1000]).last()
    config = Settings(Upstream("unused"), Relay(url), mariadb.downstream)
    connection = fresh(mariadb)
    if partitioned:
        with connection.cursor() as cursor:
            cursor.execute(
                f"ALTER TABLE rnd.heap PARTITION BY KEY ({TABLES['heap'].columns[0].name})"
                " PARTITIONS 2"
            )
    leave_checkpoint(connection, last.lo, sluice={"safe-until": end})
    run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
    assert rows_of(connection, "heap") == history.expected("heap") != []
    leave_checkpoint(connection, last.lo, sluice={"safe-until": end})
    forget(url)
    with pytest.raises(
        ApplyError,
        match=(
            r"table rnd.heap has no key, and \d of its rows .* are on .* already: .*sluice drainers"
            r" pause"
        ),
    ):
        run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
    assert rows_of(connection, "heap") == history.expected("heap")


@pytest.mark.parametrize("ran", [True, False])
def test_of_two_equal_rows_one_is_not_removed_twice(
    mariadb: MariaDBServer, tmp_path: Path, ran: bool
) -> None:
    """Upstream one of them was deleted.

    Whether the Drainer had done so nothing tells, as long as one is there.
    """
    note = table(12, "note", "a int", "b int")
    story = Story(mariadb, tmp_path)
    story.create(note, "CREATE TABLE `note` (`a` int, `b` int)")
    story.insert(note, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 2})
    story.apply()
    before = story._ts
    story.delete(note, {"a": 1, "b": 1, "_tidb_rowid": 1})
    with mariadb.connect() as connection, connection.cursor() as cursor:
        if ran:
            cursor.execute("DELETE FROM d.note WHERE a = 1 LIMIT 1")
        leave_checkpoint(connection, before, sluice={"safe-until": story._ts})
    forget(story._url)
    kept = story.rows("note")
    with pytest.raises(
        ApplyError,
        match=r"d\.note has no key, and \d of its rows removed .* still: .*which ones is unknown",
    ):
        story.apply()
    assert story.rows("note") == kept


def test_no_row_without_a_key_hides_behind_one_that_followed_it_under_a_unique_value(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """The unique column may be NULL, so it is no key.

    The row that the Drainer left had the same value there as the one that it became, and neither is
    there in the end.
    """
    note = table(12, "note", "a int", "b int", unique=("a",))
    story = Story(mariadb, tmp_path)
    story.create(note, "CREATE TABLE `note` (`a` int, `b` int, UNIQUE `u2` (`a`))")
    story.insert(note, {"a": 2, "b": 2})
    story.apply()
    before = story._ts
    first = {"a": 1, "b": 1, "_tidb_rowid": 9}
    story.insert(note, first)
    then = story.update(note, first, {"b": 5})
    story.delete(note, then)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO d.note VALUES (1, 1)")
        leave_checkpoint(connection, before, sluice={"safe-until": story._ts})
    forget(story._url)
    with pytest.raises(
        ApplyError,
        match=r"d\.note has no key, and 1 of its rows written .* already: .*which ones is unknown",
    ):
        story.apply()
    assert story.rows("note") == [(1, 1), (2, 2)]


def test_a_row_without_a_key_of_which_a_value_is_none_of_its_enum_is_looked_for_too(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    note = story.create(
        table(12, "note", "a int", "e enum('x')"), "CREATE TABLE `note` (`a` int, `e` enum('x'))"
    )
    story.apply()
    before = story._ts
    story.insert(note, {"a": 1, "e": 0})
    with mariadb.connect() as connection:
        leave_checkpoint(connection, before, sluice={"safe-until": story._ts})
    forget(story._url)
    story.apply()
    assert story.rows("note", "a, e+0") == [(1, 0)]


def test_rows_without_a_key_that_a_drainer_removed_all_are_no_reason_to_stop(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    note = table(12, "note", "a int", "b int")
    story = Story(mariadb, tmp_path)
    story.create(note, "CREATE TABLE `note` (`a` int, `b` int)")
    story.insert(note, {"a": 1, "b": 1}, {"a": 2, "b": 2})
    story.apply()
    before = story._ts
    story.delete(note, {"a": 1, "b": 1, "_tidb_rowid": 1})
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM d.note WHERE a = 1")
        leave_checkpoint(connection, before, sluice={"safe-until": story._ts})
    forget(story._url)
    story.apply()
    assert story.rows("note") == [(2, 2)]


@pytest.mark.slow
def test_every_kind_of_ddl_done_twice_with_the_changes_before_it(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    folder = RECORDINGS / "ddl"
    url = f"file://{tmp_path}/relay"
    snapshot = json.loads((folder / "snapshots.json").read_text())[-1]
    relay = land(folder, url, 40, through=snapshot["ts"])
    last = relay.last()
    config = Settings(
        Upstream("unused"), Relay(url), mariadb.downstream, apply=Apply(max_rows=20_000)
    )

    def apply(ts: int) -> None:
        relay.change_control(lambda _: Control(apply_until_ts=ts))
        run_apply(config, until_ts=ts, run_seconds=240, prepare=local_preparer(config))

    def rewind(ts: int, **more) -> None:
        with mariadb.connect() as connection:
            leave_checkpoint(connection, ts, **more)
        forget(url)

    ddls = [ddl for window in relay.windows(0) for ddl in window.ddls]
    refused = []

    def apply_again(ts: int, done: int) -> None:
        """Go on to `ts` from a place before `done`, through which all is downstream."""
        try:
            apply(ts)
        except (ApplyError, DdlError) as error:
            refused.append(str(error))
            rewind(done, consistent=True)
            apply(ts)

    done, kinds = relay.first().lo, set()
    for previous, ddl in itertools.pairwise([{"commit_ts": relay.first().lo}, *ddls]):
        if ddl["type"] in kinds:
            continue
        kinds.add(ddl["type"])
        apply_again(int(ddl["commit_ts"]), done)
        if ddl["type"] == Action.TRUNCATE_TABLE:  # a Drainer doesn't keep the rows
            with mariadb.connect() as connection:
                connection.cursor().execute("DROP DATABASE IF EXISTS sluice_recycle")
        done = int(ddl["commit_ts"])
        rewind(int(previous["commit_ts"]), sluice={"safe-until": done})
    apply_again(last.hi, done)
    assert differences(folder, snapshot["label"], mariadb) == []
    assert len(kinds) > 20 and len(refused) < 5, refused
    assert all("has no key" in text or "EXCHANGE PARTITION" in text.upper() for text in refused), (
        refused
    )
