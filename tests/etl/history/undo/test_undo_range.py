"""Row changes of many transactions are taken back as one, or the one in between is named."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from sluice.cli import main
from sluice.etl.history.find import SearchQuery, search
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.undo import (
    TableUndoSql,
    UndoError,
    dry_run,
    invert_changes,
    leave_conflicts,
    preview,
    read_range,
    script,
)
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import DELETE, INSERT, UPDATE, RelayLog
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from tests.etl.history.undo.undoing import downstream_sql, run_script, state
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table, wider
from tests.examples import examples

Row = dict[str, Any]
LEDGER = table(9, "ledger", "id int", "owner varchar(20)", "amount int", primary="id")
CREATE_LEDGER = "CREATE TABLE `ledger` (`id` int PRIMARY KEY, `owner` varchar(20), `amount` int)"
LOG = table(10, "log", "id int", "note varchar(20)", primary="id")
CREATE_LOG = "CREATE TABLE `log` (`id` int PRIMARY KEY, `note` varchar(20))"
KINDS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(LEDGER, CREATE_LEDGER)
    story.create(LOG, CREATE_LOG)
    return story


def of(story: Story) -> Settings:
    return Settings(Upstream("unused"), Relay(story.url), story.server.downstream)


def now(story: Story) -> int:
    last = RelayLog.open(story.url).last()
    assert last is not None
    return last.hi


def accounts(story: Story, count: int = 20) -> list[Row]:
    rows = [{"id": n, "owner": f"o{n % 3}", "amount": 10 * n} for n in range(count)]
    story.insert(LEDGER, *rows)
    story.insert(LOG, {"id": 0, "note": "begin"})
    return rows


def batched_delete(story: Story, rows: Sequence[Row], size: int = 3) -> None:
    """What a DELETE without WHERE in batches does, and a line in the log with each of them."""
    for at in range(0, len(rows), size):
        story.changes(
            *((LEDGER, DELETE, encode_delete(LEDGER, row)) for row in rows[at : at + size]),
            (LOG, INSERT, encode_insert(LOG, {"id": at + 1, "note": "cleaned"})),
        )


def test_a_batched_delete_is_taken_back_as_one_change(story: Story) -> None:
    rows = accounts(story)
    since = now(story)
    story.apply()
    before = state(story.server, ["d.ledger", "d.log"])
    batched_delete(story, rows)
    story.apply()
    changes = read_range(HistoryLog.open(of(story)), SearchQuery(since, now(story)))
    reverses = [invert_changes(table) for table in changes.tables]
    assert (changes.transactions, changes.others, changes.partial) == (7, (), 0)
    assert dry_run(of(story), changes, reverses).count == 0
    undone, expected = run_script(story.server, script(changes, downstream_sql(of(story), changes)))
    assert undone == expected == len(rows) + 7
    assert state(story.server, ["d.ledger", "d.log"]) == before


def test_what_the_transactions_did_besides_stays_and_is_said(story: Story) -> None:
    rows = accounts(story)
    since = now(story)
    story.apply()
    before = state(story.server, ["d.ledger"])
    batched_delete(story, rows)
    story.apply()
    log = state(story.server, ["d.log"])
    query = SearchQuery(since, now(story), ("d.ledger",), ("delete",))
    changes = read_range(HistoryLog.open(of(story)), query)
    assert (changes.others, changes.partial) == (("d.log",), 7)
    lines = list(script(changes, downstream_sql(of(story), changes)))
    assert b"Not of d.log, which they changed too." in b"\n".join(lines)
    assert b"7 of the transactions made other changes, which stay." in b"\n".join(lines)
    run_script(story.server, lines)
    assert state(story.server, ["d.ledger"]) == before
    assert state(story.server, ["d.log"]) == log


def test_a_change_in_between_that_is_not_taken_back_is_named(story: Story) -> None:
    row = accounts(story)[3]
    since = now(story)
    wrong = story.update(LEDGER, row, {"amount": -1})
    theirs = story.update(LEDGER, wrong, {"owner": "new"})
    story.update(LEDGER, theirs, {"amount": -2})
    query = SearchQuery(since, now(story), ("d.ledger",), where="old.amount <> new.amount")
    changes = read_range(HistoryLog.open(of(story)), query)
    assert changes.transactions == 2
    with pytest.raises(UndoError, match=rf"d.ledger \[id=3\].*{now(story)}.*in between"):
        invert_changes(changes.tables[0])


def test_rows_that_others_changed_since_are_left_and_all_others_are_taken_back(
    story: Story,
) -> None:
    rows = accounts(story)
    since = now(story)
    changed = story.update(LEDGER, rows[0], {"amount": -1})
    story.update(LEDGER, rows[1], {"amount": -1})
    batched_delete(story, rows[2:])
    until = now(story)
    story.update(LEDGER, changed, {"owner": "theirs"})
    story.insert(LEDGER, {"id": 7, "owner": "theirs", "amount": 99})
    story.apply()
    query = SearchQuery(since, until, ("d.ledger",))
    changes = read_range(HistoryLog.open(of(story)), query)
    reverses = [invert_changes(table) for table in changes.tables]
    assert dry_run(of(story), changes, reverses).count == 2
    done, kept = leave_conflicts(of(story), changes, reverses)
    assert sorted(each.row for each in done.conflicts) == ["id=0", "id=7"]
    assert (done.count, done.rows, sum(each.rows for each in kept)) == (2, len(rows), 18)
    tables = [TableUndoSql(each, each.touched.now, exact_floats=False) for each in kept]
    undone, expected = run_script(story.server, script(changes, tables))
    assert undone == expected == 18
    wanted = {row["id"]: (row["id"], row["owner"], row["amount"]) for row in rows}
    wanted |= {0: (0, "theirs", -1), 7: (7, "theirs", 99)}
    assert sorted(story.rows("ledger")) == sorted(wanted.values())


def test_a_conflict_is_not_left_where_a_row_that_moved_would_be_lost(story: Story) -> None:
    row = accounts(story)[3]
    since = now(story)
    story.changes(
        (LEDGER, DELETE, encode_delete(LEDGER, row)),
        (LEDGER, INSERT, encode_insert(LEDGER, row | {"id": 103})),
    )
    until = now(story)
    story.insert(LEDGER, row | {"owner": "theirs"})
    story.apply()
    changes = read_range(HistoryLog.open(of(story)), SearchQuery(since, until))
    reverses = [invert_changes(table) for table in changes.tables]
    with pytest.raises(UndoError, match=r"d.ledger \[id=3\].*can't be left out.*moved"):
        leave_conflicts(of(story), changes, reverses)


def test_rows_are_shown_before_and_after(story: Story) -> None:
    rows = accounts(story, 4)
    since = now(story)
    story.update(LEDGER, rows[0], {"amount": 7})
    story.delete(LEDGER, rows[1])
    story.insert(LEDGER, {"id": 99, "owner": "x", "amount": 1})
    changes = read_range(HistoryLog.open(of(story)), SearchQuery(since, now(story)))
    shown = [row for table in changes.tables for row in preview(invert_changes(table), 5)]
    assert [(row.effect, row.now, row.then) for row in shown] == [
        ("inserts", "", "id=1, owner='o1', amount=10"),
        ("deletes", "id=99, owner='x', amount=1", ""),
        ("updates", "id=0, amount=7", "id=0, amount=0"),
    ]


def test_ddl_between_the_changes_is_refused_with_the_two_commands(story: Story) -> None:
    rows = accounts(story)
    since = now(story)
    story.delete(LEDGER, rows[0])
    wide = wider(LEDGER, column(4, "more int"))
    story.statement(5, "ALTER TABLE `ledger` ADD COLUMN `more` int", wide)
    between = now(story)
    story.changes((wide, DELETE, encode_delete(wide, rows[1] | {"more": None})))
    with pytest.raises(UndoError, match=r"d\.ledger: DDL changed its definition") as caught:
        read_range(HistoryLog.open(of(story)), SearchQuery(since, now(story)))
    assert "--since" in caught.value.hint and "--until" in caught.value.hint
    later = read_range(HistoryLog.open(of(story)), SearchQuery(between, now(story)))
    earlier = read_range(HistoryLog.open(of(story)), SearchQuery(since, between))
    assert (later.transactions, earlier.transactions) == (1, 1)


def test_too_many_changes_are_refused_before_they_fill_the_memory(story: Story) -> None:
    batched_delete(story, accounts(story))
    with pytest.raises(UndoError, match="more than 10 row changes"):
        read_range(HistoryLog.open(of(story)), SearchQuery(0, now(story)), max_changes=10)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "update", "delete", "rekey"]),
        st.integers(0, 4),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=14,
)


class Model:
    """Plain dicts: the rows now, and each change as (kind, old row, new row) in order."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.changes: list[tuple[str, Row | None, Row | None]] = []

    def step(self, what: str, key: int, value: int) -> bool:
        old = self.rows.get(key)
        if what == "insert":
            if old is not None:
                return False
            self.put("insert", None, {"id": key, "owner": "o", "amount": value})
        elif old is None:
            return False
        elif what == "delete":
            self.put("delete", old, None)
        elif what == "update":
            self.put("update", old, old | {"amount": value})
        elif key + 10 in self.rows:
            return False
        else:
            self.put("update", old, old | {"id": key + 10})
        return True

    def put(self, kind: str, old: Row | None, new: Row | None) -> None:
        if old is not None:
            del self.rows[old["id"]]
        if new is not None:
            self.rows[new["id"]] = new
        self.changes.append((kind, old, new))

    def without(self, kinds: set[str]) -> dict[int, Row] | None:
        """The rows if changes of these kinds were taken back; None if that can't be right.

        For each key: what was there before the first of them, if each of them found what the one
        before had left, and if what the last one left is still there. A row that they changed into
        what it had been has nothing to be taken back.
        """
        first: dict[int, Row | None] = {}
        left: dict[int, Row | None] = {}
        for kind, old, new in self.changes:
            if kind not in kinds:
                continue
            for image, after in ((old, None), (new, new)):
                if image is None:
                    continue
                key, found = image["id"], image if after is None else None
                if key in left and left[key] != found:
                    return None
                first.setdefault(key, found)
                left[key] = after
        first = {key: row for key, row in first.items() if row != left[key]}
        if any(self.rows.get(key) != left[key] for key in first):
            return None
        rows = {key: row for key, row in self.rows.items() if key not in first}
        return rows | {key: row for key, row in first.items() if row is not None}


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example([("insert", 0, 0)], [("update", 0, 0), ("delete", 0, 0)], {"update"})
@given(
    beginning=STEPS,
    accident=STEPS,
    kinds=st.sets(st.sampled_from(sorted(KINDS)), min_size=1),
)
def test_random_changes_of_some_kinds_are_taken_back_exactly_or_refused(
    mariadb_server: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    beginning: list[tuple[str, int, int]],
    accident: list[tuple[str, int, int]],
    kinds: set[str],
) -> None:
    mariadb_server.empty()
    story = Story(mariadb_server, tmp_path_factory.mktemp("range"))
    story.create(LEDGER, CREATE_LEDGER)
    model = Model()

    def play(steps: list[tuple[str, int, int]]) -> None:
        for step in steps:
            if model.step(*step):
                kind, old, new = model.changes[-1]
                encoded = {
                    "insert": lambda new=new: encode_insert(LEDGER, new),
                    "update": lambda old=old, new=new: encode_update(LEDGER, old, new),
                    "delete": lambda old=old: encode_delete(LEDGER, old),
                }[kind]()
                story.changes((LEDGER, KINDS[kind], encoded))

    play(beginning)
    since = now(story)
    model.changes.clear()
    play(accident)
    story.apply()
    selected = [change for change in model.changes if change[0] in kinds]
    query = SearchQuery(since, now(story), kinds=tuple(sorted(kinds)))
    note(f"{model.changes} {kinds}")
    if not selected:
        if since < now(story):
            with pytest.raises(UndoError, match="no such row changes"):
                read_range(HistoryLog.open(of(story)), query)
        return
    expected = model.without(kinds)
    changes = read_range(HistoryLog.open(of(story)), query)
    assert changes.transactions == len(selected)
    try:
        tables = downstream_sql(of(story), changes)
    except UndoError:
        assert expected is None
        return
    conflicts = dry_run(of(story), changes, [table.reverse for table in tables]).count
    if expected is None:
        assert conflicts
        return
    assert not conflicts
    undone, wanted = run_script(story.server, script(changes, tables))
    assert undone == wanted
    assert story.rows("ledger") == sorted(
        ((row["id"], row["owner"], row["amount"]) for row in expected.values()), key=repr
    )


def test_the_command_previews_prints_and_applies_a_range(
    story: Story,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = accounts(story)
    since = now(story)
    story.apply()
    before = state(story.server, ["d.ledger"])
    batched_delete(story, rows)
    story.apply()
    downstream = story.server.downstream
    config = tmp_path / "sluice.toml"
    config.write_text(
        f"""
[upstream]
pd-urls = "http://127.0.0.1:1"
sql-host = "{downstream.host}"
sql-port = {downstream.port}
sql-user = "nobody"
[relay]
url = "{story.url}"
[downstream]
host = "{downstream.host}"
port = {downstream.port}
user = "{downstream.user}"
password-env = "{downstream.password_env}"
"""
    )

    def ran(*words: str, tables: str = "d.ledger") -> tuple[int | str | None, str]:
        given = ["--since", str(since), "--table", tables, "--kind", "delete"]
        with pytest.raises(SystemExit) as ended:
            main(["undo", "--config", str(config), *given, *words])
        printed = capsys.readouterr()
        return ended.value.code, printed.out if "--json" in words else printed.out + printed.err

    code, output = ran("--dry-run", "--rows", "1")
    assert code == 0
    assert re.search(r"^\+ d.ledger \[id=\d+, owner='o\d', amount=\d+\]$", output, re.MULTILINE)
    assert "20 rows looked at" in output and "no conflicts" in output
    assert len(json.loads(ran("--dry-run", "--json")[1])["preview"]) == 5
    assert "no column" not in output
    story.insert(LOG, {"id": 1, "note": "a"})
    story.delete(LOG, {"id": 1, "note": "a"})
    code, output = ran("--dry-run", "--where", "amount >= 0", tables="d.*")
    assert code == 0 and "20 rows looked at" in output
    assert "no column amount in d.log: there, nothing fits a condition on it" in output
    code, output = ran(tables="d.leger")
    assert code == 1 and "d.ledger" in output
    monkeypatch.setenv("RIGHTS", downstream.password())
    rights = ["--user", downstream.user, "--password-env", "RIGHTS"]
    code, output = ran("--apply", *rights)
    assert code == 0 and "20 rows are what they were" in output
    assert state(story.server, ["d.ledger"]) == before
    code, output = ran("--apply", *rights)
    assert code == 1 and "nothing was changed" in output
    assert state(story.server, ["d.ledger"]) == before
    code, output = ran("--dry-run")
    assert code == 1 and "20 conflicts" in output and "nothing is left to take back" in output
    code, output = ran("--apply", "--leave-conflicts", *rights)
    assert code == 1 and "nothing to take back" in output
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM d.ledger WHERE id = 5")
    code, output = ran("--dry-run", "--leave-conflicts")
    assert code == 0 and "19 conflicts" in output and "1 row can be taken back" in output
    code, output = ran("--leave-conflicts")
    assert code == 0 and output.count("INSERT INTO") == 1
    code, output = ran("--apply", "--leave-conflicts", *rights)
    assert code == 0 and "1 row is what it was" in output
    assert state(story.server, ["d.ledger"]) == before


def test_single_rows_that_an_application_deleted_between_the_batches_stay_deleted(
    story: Story,
) -> None:
    rows = accounts(story)
    since = now(story)
    for at in range(0, 16, 4):  # each batch in two tables, which count together
        story.changes(
            *((LEDGER, DELETE, encode_delete(LEDGER, row)) for row in rows[at : at + 3]),
            (LOG, INSERT, encode_insert(LOG, {"id": at + 1, "note": "cleaned"})),
        )
        story.changes((LEDGER, DELETE, encode_delete(LEDGER, rows[at + 3])))
    story.apply()
    past = HistoryLog.open(of(story))
    changes = read_range(past, SearchQuery(since, now(story), min_rows=4))
    assert changes.transactions == 4 and changes.partial == 0
    sql = downstream_sql(of(story), changes)
    assert run_script(story.server, script(changes, sql)) == (16, 16)
    assert {row[0] for row in story.rows("ledger")} == set(range(20)) - {3, 7, 11, 15}
    assert [row[0] for row in story.rows("log")] == [0]
    assert search(of(story), SearchQuery(since, now(story), min_rows=5)).transactions == []


@pytest.mark.parametrize(
    "words",
    [[], ["1", "--since", "2h"], ["1", "--where", "a = 1"], ["--since", "2h", "--start-ts", "5"]],
)
def test_one_transaction_and_a_range_exclude_each_other(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["undo", *words])
    assert ended.value.code == 2
    assert re.search("Error: .*(--since|COMMIT_TS)", capsys.readouterr().err)
