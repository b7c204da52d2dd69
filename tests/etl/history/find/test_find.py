"""Past transactions and DDL are found, through schema changes, here and by Spark."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import main
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.history.find import ConditionError, FindError, SearchQuery, SearchResults, search
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.settings import Downstream, Relay, Settings, Spark, Upstream
from sluice.etl.settings.job_sections import Archive
from sluice.relay import DELETE, INSERT, UPDATE, RelayLog
from sluice.relay import archive as relay_archive
from sluice.relay.archive import ArchiveLog, Pins, RemovedError, write_log
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.story import Story, column, table

ALL = 1 << 62


def settings_of(url: str, remote: str = "sc://unused:1") -> Settings:
    return Settings(Upstream("unused"), Relay(url), Downstream(type="file"), spark=Spark(remote))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = tmp_path_factory.mktemp("find").as_uri() + "/relay"
    land(RECORDINGS / "shop", url, 700)
    return url


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied


def of(story: Story) -> Settings:
    return settings_of(story.url)


def look(settings: Settings, **wanted: Any) -> SearchResults:
    return search(settings, SearchQuery(wanted.pop("since", 0), wanted.pop("until", ALL), **wanted))


def test_every_transaction_of_a_recording_is_counted_as_the_log_has_it(shop: str) -> None:
    relay = RelayLog.open(shop)
    changes = relay.read(relay.windows(0)).to_pylist()
    names = {1: "x"}
    for window in relay.windows(0):
        names |= {int(i): f"{t['schema_name']}.{t['name']}" for i, t in window.tables.items()}
        for ddl in window.ddls:
            names |= {
                int(i): f"{t['schema_name']}.{t['name']}"
                for i, t in ddl["effect"]["tables"].items()
                if t
            }
    carts = [change for change in changes if names.get(change["table_id"]) == "bank.cart"]
    kinds = Counter(change["kind"] for change in carts)
    found = look(settings_of(shop), tables=("bank.cart",), order="size", limit=7)
    counted = [found.counts[name] for name in ("inserts", "updates", "deletes")]
    assert counted == [kinds[kind] for kind in (INSERT, UPDATE, DELETE)]
    sizes = Counter(change["commit_ts"] for change in carts)
    assert found.counts["transactions"] == len(sizes)
    expected = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))[:7]
    assert [(one.commit_ts, one.rows) for one in found.transactions] == expected
    middle = expected[3][0]
    alone = look(settings_of(shop), since=middle - 1, until=middle)
    assert [one.commit_ts for one in alone.transactions] == [middle]


def archived(url: str, until: int, then: Path) -> Settings:
    """Settings with an archive of the relay log through `until`, and a relay log that begins in its
    middle.
    """
    relay = RelayLog.open(url)
    settings = replace(settings_of(url), archive=Archive((then / "archive").as_uri()))
    windows = list(relay.windows(0, until))
    archive = relay_archive.Archive.open(settings.archive_url)
    for some in (windows[: len(windows) // 2], windows[len(windows) // 2 :]):
        archive.append(write_log(relay.storage, archive.storage, some, "t").segment())
    shutil.copytree(Path(url.removeprefix("file://")), then / "relay")
    later = RelayLog.open((then / "relay").as_uri())
    assert later.purge(windows[len(windows) // 2].hi) > 0
    return replace(settings, relay=Relay(later.url))


@pytest.mark.slow
@pytest.mark.parametrize("tables", [(), ("bank.cart",)])
def test_archive_and_relay_log_together_hold_what_the_relay_log_held(
    shop: str, tmp_path: Path, tables: tuple[str, ...]
) -> None:
    first, last = RelayLog.open(shop).first(), RelayLog.open(shop).last()
    assert first is not None
    assert last is not None
    settings = archived(shop, (first.lo + last.hi) // 2, tmp_path)
    assert [type(stretch.log) for stretch in HistoryLog.open(settings).ranges(0, ALL)] == [
        ArchiveLog,
        RelayLog,
    ]
    for order in ("time", "size"):
        query = SearchQuery(0, ALL, tables, order=order, limit=30)
        here, there = search(settings_of(shop), query), search(settings, query)
        assert there.transactions == here.transactions
        assert there.ddls == here.ddls
        assert all(
            there.counts[name] == here.counts[name] for name in ("transactions", "inserts", "ddls")
        )


@pytest.mark.slow
def test_what_is_looked_through_stays_in_the_archive_until_it_was(
    shop: str, tmp_path: Path
) -> None:
    last = RelayLog.open(shop).last()
    assert last is not None
    settings = archived(shop, last.hi, tmp_path)
    holds, seen = Pins(ArchiveLog.open(settings.archive_url).storage), []

    def looking(through: int, found: SearchResults) -> None:
        seen.extend(holds.all().values())

    first = HistoryLog.open(settings).first
    search(settings, SearchQuery(0, ALL), on_progress=looking)
    assert {(hold.what, hold.from_ts) for hold in seen} == {("`sluice find`", first)}
    assert holds.all() == {}
    holds.advance_removal(last.hi, ())
    with pytest.raises(RemovedError, match="`sluice find` needs it"):
        search(settings, SearchQuery(0, ALL))


def test_what_is_in_neither_of_them_is_named(shop: str, tmp_path: Path) -> None:
    windows = list(RelayLog.open(shop).windows(0))
    settings = archived(shop, windows[6].hi, tmp_path)
    RelayLog.open(settings.relay.url).purge(windows[12].hi)
    with pytest.raises(FindError, match=f"{windows[13].lo}.*in neither"):
        HistoryLog.open(settings)


@pytest.mark.quick_cases("group3")
@pytest.mark.parametrize(
    "group", [("minute",), ("table",), ("shape",), ("minute", "table", "shape"), ("table", "shape")]
)
def test_groups_hold_what_the_log_holds_of_them(shop: str, group: tuple[Any, ...]) -> None:
    relay = RelayLog.open(shop)
    names: dict[int, str] = {}
    for window in relay.windows(0):
        names |= {int(i): f"{t['schema_name']}.{t['name']}" for i, t in window.tables.items()}
    transactions: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for change in relay.read(relay.windows(0)).to_pylist():
        name = names.get(change["table_id"], "")
        if name.startswith("bank."):
            at = change["commit_ts"], change["start_ts"]
            transactions.setdefault(at, []).append((name, change["kind"]))
    verbs = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
    order = {INSERT: 0, UPDATE: 1, DELETE: 2}
    expected: dict[tuple[int, str, str], Counter[Any]] = {}
    for (commit_ts, start_ts), changes in transactions.items():
        distinct = sorted(set(changes), key=lambda one: (one[0], order[one[1]]))
        shape = ", ".join(f"{verbs[kind]} {name}" for name, kind in distinct)
        for name, kind in changes:
            minute = (commit_ts >> 18) // 60_000 * 60_000 << 18
            key = (
                minute if "minute" in group else 0,
                name if "table" in group else "",
                shape if "shape" in group else "",
            )
            counts = expected.setdefault(key, Counter())
            counts[kind] += 1
            counts[commit_ts, start_ts] = 1
    found = look(settings_of(shop), tables=("bank.*",), group=group)
    assert not found.transactions
    assert {
        one.key: (one.transactions, one.inserts, one.updates, one.deletes) for one in found.groups
    } == {
        key: (
            len([each for each in counts if isinstance(each, tuple)]),
            *(counts[k] for k in verbs),
        )
        for key, counts in expected.items()
    }
    for one in found.groups:
        stamps = [each[0] for each in expected[one.key] if isinstance(each, tuple)]
        assert (one.first_ts, one.last_ts) == (min(stamps), max(stamps))


@pytest.mark.slow
@pytest.mark.parametrize("group", [(), ("minute", "table")])
def test_spark_finds_what_is_found_here(
    shop: str, spark_remote: str, group: tuple[Any, ...]
) -> None:
    query = SearchQuery(
        *(0, ALL, ("bank.*",), ("update", "delete")),
        *("id BETWEEN 1 AND 40 OR uid = 7", "size", 20),
        group=group,
    )
    here = search(settings_of(shop), query)
    told: list[int] = []
    there = search(
        settings_of(shop, spark_remote),
        query,
        here_changes=0,
        on_progress=lambda ts, found: told.append(ts),
    )
    assert there.to_json() == here.to_json()
    assert here.counts["transactions"] > 20
    assert told == sorted(told) and told


def test_the_accident_is_found_by_its_size_with_some_of_its_keys(story: Story) -> None:
    orders = story.create(
        table(9, "orders", "id int", "total decimal(9,2)", primary="id"), "CREATE TABLE orders"
    )
    rows = [{"id": n, "total": f"{n}.50"} for n in range(1, 41)]
    story.insert(orders, *rows)
    story.delete(orders, rows[0])
    story.delete(orders, *rows[1:])
    accident, *others = look(
        of(story), tables=("d.orders",), kinds=("delete",), order="size"
    ).transactions
    assert accident.rows == 39
    assert accident.tables[0].keys == ("id=2", "id=3", "id=4")
    assert [one.rows for one in others] == [1]
    last = RelayLog.open(story.url).last()
    assert last is not None
    assert accident.commit_ts == last.hi


def test_a_condition_goes_through_added_dropped_and_renamed_columns_and_tables(
    story: Story,
) -> None:
    first = story.create(table(9, "t", "id int", "v int", primary="id"), "CREATE TABLE t")
    story.insert(first, {"id": 1, "v": 5})
    second = replace(first, columns=(*first.columns, column(3, "w varchar(9)")))
    story.statement(5, "ALTER TABLE t ADD w", second)
    story.insert(second, {"id": 2, "v": 6, "w": "new"})
    third = replace(
        second,
        name="u",
        columns=(second.columns[0], replace(second.columns[1], name="x"), second.columns[2]),
    )
    story.statement(14, "RENAME TABLE t TO u", third)
    story.insert(third, {"id": 3, "x": 5, "w": "new"})
    by = lambda where, *tables: [  # noqa: E731
        (rows.table, rows.keys)
        for one in look(of(story), where=where, tables=tables).transactions
        for rows in one.tables
    ]
    assert by("v = 5") == [("d.t", ("id=1",))]
    assert by("v = 5 OR x = 5") == [("d.t", ("id=1",)), ("d.u", ("id=3",))]
    assert by("w = 'new'") == [("d.t", ("id=2",)), ("d.u", ("id=3",))]
    assert by("id > 0", "d.u") == [("d.u", ("id=3",))]
    with pytest.raises(ConditionError, match="column nowhere"):
        by("id = 1 AND nowhere = 2")


def test_ddl_is_found_by_its_table_and_what_removes_rows_by_that(story: Story) -> None:
    made = story.create(
        table(9, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)"
    )
    other = story.create(table(10, "other", "id int", primary="id"), "CREATE TABLE `other`")
    story.insert(made, {"id": 1})
    story.statement(11, "TRUNCATE TABLE `t`", 9, replace(made, id=11))
    story.statement(4, "DROP TABLE `other`", other.id)
    ddls = look(of(story), tables=("d.t",), kinds=("ddl",)).ddls
    assert [(one.kind, one.drops) for one in ddls] == [
        ("create table", False),
        ("truncate table", True),
    ]
    dropped = look(of(story), kinds=("drop",)).ddls
    assert [(one.statement, one.tables) for one in dropped] == [
        ("TRUNCATE TABLE `t`", ("d.t",)), ("DROP TABLE `other`", ("d.other",)),
    ]  # fmt: skip
    assert look(of(story), where="id = 1").ddls == []
    assert look(of(story), kinds=("insert",)).ddls == []


def test_a_drop_of_a_column_with_its_two_binlogs_is_found_once_as_it_ended(story: Story) -> None:
    made = story.create(table(9, "t", "id int", "a int", primary="id"), "CREATE TABLE `t`")
    drop = "ALTER TABLE `t` DROP COLUMN `a`"
    story.statement(6, drop, name="t", job_id=70, schema_state=1)
    story.statement(6, drop, replace(made, columns=made.columns[:1]), job_id=70, schema_state=0)
    (last,) = RecordedSchema.from_window(list(RelayLog.open(story.url).windows(0))[-1]).ddls
    found = look(of(story), kinds=("ddl",))
    assert [one.commit_ts for one in found.ddls if one.statement == drop] == [last.commit_ts]
    assert found.counts["ddls"] == len(found.ddls)


def test_rows_without_a_key_are_shown_by_their_values(story: Story) -> None:
    heap = story.create(table(9, "h", "a int", "b varchar(90)"), "CREATE TABLE h")
    story.insert(heap, {"a": 1, "b": "x\n\x1b[2J"}, {"a": 2, "b": None})
    assert look(of(story)).transactions[0].tables[0].keys == (
        "a=1, b='x\\n\\x1b[2J'",
        "a=2, b=NULL",
    )


def test_an_empty_log_says_so(tmp_path: Path) -> None:
    with pytest.raises(FindError, match="nothing has landed"):
        HistoryLog.open(settings_of(tmp_path.as_uri()))


@pytest.mark.slow
def test_the_command_shows_times_in_a_zone_and_json_for_scripts(
    shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://unused:1"\n[relay]\nurl = "{shop}"\n[downstream]\ntype ='
        f' "file"\n[file]\ndir = "{tmp_path}/out"\n'
    )

    def ran(*arguments: str) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["find", "--config", str(config), *arguments])
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    wanted = ("--table", "bank.cart", "--kind", "delete", "--sort", "size", "--limit", "1")
    code, out, err = ran(*wanted, "--zone", "Asia/Kolkata")
    assert code == 0
    assert "+05:30" in out
    assert "12 deleted" in out
    assert "more aren't shown" in err
    code, out, _ = ran(*wanted, "--json")
    first, counts = (json.loads(line) for line in out.splitlines())
    assert first["transaction"]["rows"] == 12
    assert first["transaction"]["time"].endswith("+00:00")
    assert counts["counts"]["transactions"] > 100
    code, out, err = ran(*wanted, "--group", "table", "--group", "minute", "--zone", "Asia/Kolkata")
    assert code == 0 and "more aren't shown" in err
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d\+05:30  bank\.cart: [\d,]+ deleted in [\d,]+ transactions"
        r"\n    \d+  ",
        out,
    )
    code, out, _ = ran("--group", "table")  # by default the largest first, and DDL behind it
    sizes = [int(n.replace(",", "")) for n in re.findall(r"^bank\.\w+: ([\d,]+) ", out, re.M)]
    assert code == 0 and out.startswith("bank.") and len(sizes) > 1
    assert "create table" not in out.lower().partition("\nbank.")[0]
    code, out, _ = ran(*wanted, "--group", "shape", "--json")
    assert json.loads(out.splitlines()[0])["group"]["shape"].startswith("delete bank.cart")
    assert ran("--since", "2026-01-02T00:00:00", "--until", "2026-01-01T00:00:00")[0] == 2
    assert ran("--zone", "Atlantis")[0] == 2
    assert ran("--where", "no such")[0] == 1
    code, _, err = ran("--table", "bank.leger")
    assert (
        code == 1
        and "no table bank.leger has rows or DDL" in err
        and "did you mean bank.ledger?" in err
        and "no table bank.leger has rows or DDL" in err
        and "did you mean bank.ledger?" in err
    )
    code, out, err = ran("--table", "ledger", "--table", "bank.ledger", "--kind", "drop")
    assert code == 1 and "no table ledger " in err and "did you mean bank.ledger?" in err
    code, out, err = ran("--table", "bank.ledger", "--kind", "drop")
    assert (code, out) == (0, "")
    wanted = ("--table", "bank.cart", "--kind", "delete", "--limit", "1000", "--json")
    orders = [
        [
            json.loads(line)["transaction"]["commit_ts"]
            for line in ran(*wanted, "--sort", sort)[1].splitlines()[:-1]
        ]
        for sort in ("time", "newest")
    ]
    assert orders[0] == orders[1][::-1] != orders[1]
