"""Expectations on a real server: each kind fails when its fault is put in, and what is found
reaches people unharmed.

All that needs Great Expectations and a server is here, as importing it takes seconds. Tests import
it, since every worker imports this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.downstream import Checkpoint, CheckpointTable, MySQLSession
from sluice.etl.history.as_of import differences_between, run_locally
from sluice.etl.settings import Settings, load_settings, parse_settings, read_target
from sluice.expectations import sum_drift as sums
from sluice.expectations.dataset import using
from sluice.expectations.propose import propose_for_replication
from sluice.expectations.replication import ReplicationDataset
from sluice.expectations.results import QualityResults, QualityRun
from sluice.expectations.run import QualityRequest, QualitySummary, run_quality
from sluice.expectations.suite import Expectation, QualityError, Suite, SuiteError
from sluice.expectations.suite_files import SuiteFolder, WriteResult, propose_suites
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from sluice.relay.quality import PASSED
from sluice.tidb import tso
from sluice.tidb.table_name import TableName, exactly
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, committed
from tests.etl.relay_from_recording import land as land_recording
from tests.relay.archivekit import archive_all
from tests.relay.relaykit import land

CLUSTER = 1
ROWS = 400
SECRET = "hush-hush-4711"
TABLE = "shop.orders"


@pytest.fixture(scope="module")
def shop(
    mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Settings, MySQLSession]]:
    """A replica at a checkpoint, whose orders have customers, and whose user has a password."""
    mariadb_server.empty()
    folder = tmp_path_factory.mktemp("quality")
    (folder / "password").write_text(SECRET + "\n")
    root = mariadb_server.connect()
    with root.cursor() as cursor:
        cursor.execute(f"CREATE OR REPLACE USER watcher@'127.0.0.1' IDENTIFIED BY '{SECRET}'")
        cursor.execute("GRANT ALL ON *.* TO watcher@'127.0.0.1'")
    url = (folder / "relay").as_uri()
    (folder / "sluice.toml").write_text(
        f'[upstream]\npd-urls = "pd:2379"\n[relay]\nurl = "{url}"\n[downstream]\nhost ='
        f' "127.0.0.1"\nport = {mariadb_server.port}\nuser = "watcher"\npassword-file ='
        f' "{folder}/password"\n[quality]\nkeep = 3\n'
    )
    settings = load_settings(folder / "sluice.toml")
    ts = tso.wall_clock()
    land(RelayLog.open(url), ts - 1000, ts, ts - 500)
    session = MySQLSession(settings.downstream)
    session.connect()
    checkpoints = CheckpointTable.from_settings(session, settings.downstream, CLUSTER)
    checkpoints.create()
    checkpoints.save(Checkpoint(ts, 3), first=True)
    session.execute("CREATE DATABASE shop")
    session.execute(
        "CREATE TABLE shop.customers (id BIGINT PRIMARY KEY, name VARCHAR(40) NOT NULL)"
    )
    session.execute(
        "CREATE TABLE shop.orders (id BIGINT, customer_id BIGINT, state VARCHAR(16) NOT NULL,"
        " amount DECIMAL(12,2), `odd name%s` INT, created_at DATETIME(6), PRIMARY KEY (id),"
        " CONSTRAINT of_customer FOREIGN KEY (customer_id) REFERENCES customers (id))"
    )
    fill(session)
    yield settings, session
    session.close()
    with root.cursor() as cursor:
        cursor.execute("DROP USER watcher@'127.0.0.1'")
    root.close()


def fill(session: MySQLSession) -> None:
    session.execute("DELETE FROM shop.orders")
    session.execute("DELETE FROM shop.customers")
    session.execute(
        "INSERT INTO shop.customers SELECT seq, CONCAT('c', seq) FROM mysql.seq_1_to_20"
    )
    session.execute(
        "INSERT INTO shop.orders SELECT seq, 1 + seq % 20, ELT(1 + seq % 3, 'new', 'paid',"
        " 'sent'), seq + 0.25, seq, UTC_TIMESTAMP(6) - INTERVAL seq SECOND FROM"
        f" mysql.seq_1_to_{ROWS}"
    )
    session.commit()


@pytest.fixture
def folder(shop: tuple[Settings, MySQLSession]) -> Iterator[SuiteFolder]:
    """The suites' folder, empty."""
    found = SuiteFolder(Path(shop[0].quality.suites))
    found.folder.mkdir(exist_ok=True)
    yield found
    for path in found.folder.iterdir():
        path.unlink()


def look(
    settings: Settings, folder: SuiteFolder, *expectations: Expectation, on: str = "downstream"
) -> QualityRun:
    folder.write(Suite(TABLE, expectations), over_edited=True)
    (found,) = run_quality(settings, QualityRequest(on, (TABLE,))).suites
    return found


def proposed(settings: Settings, *names: str) -> dict[str, WriteResult]:
    found = {}
    propose_suites(settings, names, lambda suite, _, written: found.update({suite.name: written}))
    return found


def page(settings: Settings, run: QualityRun) -> str:
    return file(settings, run.page)


def file(settings: Settings, path: str) -> str:
    found = QualityResults(settings).docs().read(path)
    assert found is not None, path
    return found.decode()


@pytest.mark.slow
def test_what_is_proposed_is_met_and_nothing_secret_is_in_the_report(shop, folder):
    settings, _ = shop
    assert proposed(settings) == dict.fromkeys(
        ["shop.customers", TABLE, "replication"], WriteResult.NEW
    )
    done = run_quality(settings, QualityRequest(suites=("shop.*",)))
    assert {suite.suite: (suite.state, suite.failures) for suite in done.suites} == {
        "shop.customers": (PASSED, ()), TABLE: (PASSED, ()),
    }  # fmt: skip
    (orders,) = (suite for suite in done.suites if suite.suite == TABLE)
    assert orders.ts == RelayLog.open(settings.relay.url).last().hi
    kinds = {e.expectation for suite in folder.suites() for e in suite.expectations}
    assert kinds >= {
        "expect_columns_and_types",
        "expect_key_to_be_unique",
        "expect_column_values_to_not_be_null",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_be_between",
        "expect_newest_to_be_recent",
        "expect_references_to_have_parents",
        "expect_table_row_count_to_be_between",
    }
    files = [path for path in Path(done.index).parent.rglob("*") if path.is_file()]
    assert {"index.html", "style.css"} <= {path.name for path in files}
    written = "".join(path.read_text() for path in files)
    assert TABLE in written and "name a row of" not in written
    for secret in (SECRET, "watcher", "pymysql://w", str(settings.downstream.port)):
        assert secret not in written, secret


NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "customer_id"})
STATES = Expectation(
    "expect_column_values_to_be_in_set", {"column": "state", "value_set": ["new", "paid", "sent"]}
)
AMOUNTS = Expectation(
    "expect_column_values_to_be_between",
    {"column": "amount", "min_value": 0, "max_value": 1000},
    "warn",
)
PARENTS = Expectation(
    "expect_references_to_have_parents",
    {"columns": ["customer_id"], "parent": "shop.customers", "parent_columns": ["id"]},
)
UNIQUE = Expectation("expect_key_to_be_unique", {"columns": ["state", "amount"]})
UNIQUE_ID = Expectation("expect_key_to_be_unique", {"columns": ["id"]})
FRESH = Expectation("expect_newest_to_be_recent", {"column": "created_at", "hours": 24})
MANY = Expectation("expect_table_row_count_to_be_between", {"min_value": ROWS // 2})
TYPES = Expectation(
    "expect_columns_and_types",
    {
        "columns": {
            "id": "bigint",
            "customer_id": "bigint",
            "state": "varchar(16)",
            "amount": "decimal(12,2)",
            "odd name%s": "int",
            "created_at": "datetime(6)",
        }
    },
)
ODD = Expectation(
    "expect_column_values_to_be_between",
    {"column": "odd name%s", "min_value": 0, "max_value": ROWS},
)
OWN_SQL = Expectation(
    "unexpected_rows_expectation",
    {"unexpected_rows_query": "SELECT id FROM {batch} WHERE amount < 0"},
)
FAULTS = [
    (NOT_NULL, "UPDATE shop.orders SET customer_id = NULL WHERE id = 7", "1 of 400 rows"),
    (STATES, "UPDATE shop.orders SET state = 'lost' WHERE id IN (7, 8)", "2 of 400 rows: lost"),
    (AMOUNTS, "UPDATE shop.orders SET amount = -3.5 WHERE id = 7", "1 of 400 rows: -3.50"),
    (PARENTS, "DELETE FROM shop.customers WHERE id = 8", "20 rows without parent"),
    (
        UNIQUE,
        "UPDATE shop.orders SET state = 'new', amount = 5 WHERE id IN (7, 8, 9)",
        "1 keys in 3 rows",
    ),
    (FRESH, "UPDATE shop.orders SET created_at = created_at - INTERVAL 3 DAY", "72.0 hours old"),
    (MANY, f"DELETE FROM shop.orders WHERE id > {ROWS // 4}", "100"),
    (TYPES, "ALTER TABLE shop.orders ADD extra INT, MODIFY amount DECIMAL(14,2)", "2 differ"),
    (ODD, "UPDATE shop.orders SET `odd name%s` = -1 WHERE id = 7", "1 of 400 rows: -1"),
    (OWN_SQL, "UPDATE shop.orders SET amount = -1 WHERE id = 7", "1"),
]


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize(
    ("expectation", "fault", "says"), FAULTS, ids=[f[0].expectation + f[0].about for f in FAULTS]
)
def test_each_kind_of_expectation_is_met_and_fails_when_its_fault_is_put_in(
    shop, folder, expectation, fault, says
):
    settings, session = shop
    assert look(settings, folder, expectation).state == PASSED
    try:
        session.execute(fault)
        session.commit()
        found = look(settings, folder, expectation)
    finally:
        if fault.startswith("ALTER"):
            session.execute(
                "ALTER TABLE shop.orders DROP COLUMN extra, MODIFY amount DECIMAL(12,2)"
            )
        fill(session)
    assert found.state == {"warn": "warned", "fail": "failed"}[expectation.severity]
    (failed,) = found.failures
    assert says in failed.observed
    assert failed.expectation == expectation.expectation and failed.about == expectation.about


@pytest.mark.slow
def test_the_report_shows_examples_with_their_keys_and_escapes_what_is_in_the_rows(shop, folder):
    settings, session = shop
    evil = "<script>x()"
    try:
        session.execute(f"UPDATE shop.orders SET state = '{evil}' WHERE id IN (7, 133)")
        session.execute(
            "UPDATE shop.customers SET name = '\"><img src=x onerror=y()>' WHERE id = 3"
        )
        session.commit()
        why = "because </style><script>of this"
        found = look(
            settings, folder, Expectation(STATES.expectation, STATES.arguments, "fail", why)
        )
        names = Expectation(
            "expect_column_values_to_match_like_pattern", {"column": "name", "like_pattern": "c%"}
        )
        folder.write(Suite("shop.customers", (names,)), over_edited=True)
        (customers,) = run_quality(settings, QualityRequest(suites=("shop.customers",))).suites
    finally:
        fill(session)
    html = page(settings, found) + page(settings, customers)
    assert "&lt;script&gt;x()" in html and "<td>133</td>" in html
    assert "&quot;&gt;&lt;img src=x onerror=y()&gt;" in html
    for text in (html, file(settings, "index.html")):
        assert not re.search(r"<(script|img)|<[^>]*\son\w+=", text, re.IGNORECASE), (
            "nothing runs in a report"
        )
        assert "//" not in re.sub(r"<p class=dim>.*?</p>", "", text), "nothing comes from elsewhere"
    result = json.loads(file(settings, found.page.replace(".html", ".json")))
    assert result["results"][0]["result"]["unexpected_count"] == 2


def test_one_that_is_not_met_decides_by_its_severity_whether_the_pipeline_pauses(shop, folder):
    settings, session = shop
    relay = RelayLog.open(settings.relay.url)
    session.execute("UPDATE shop.orders SET state = 'lost' WHERE id = 7")
    session.commit()
    try:
        for severity, state, paused in (
            ("warn", "warned", False),
            ("fail", "failed", False),
            ("pause", "paused", True),
        ):
            found = look(
                settings, folder, Expectation(STATES.expectation, STATES.arguments, severity)
            )
            assert (found.state, found.severity) == (state, severity)
            assert relay.control().apply_paused is paused and not relay.control().land_paused
    finally:
        relay.change_control(lambda control: type(control)())
        fill(session)


def test_all_statements_of_a_run_see_one_moment_though_rows_change_meanwhile(
    shop, folder, monkeypatch
):
    settings, session = shop
    from sluice.expectations.server_dataset import ServerDataset

    asked: list[str] = []
    ask: Callable[..., object] = ServerDataset.ask

    def changed(place: ServerDataset, statement: str) -> object:
        asked.append(statement)
        session.execute("UPDATE shop.orders SET state = CONCAT('x', id) ORDER BY id DESC LIMIT 1")
        session.execute("DELETE FROM shop.orders ORDER BY id LIMIT 5")
        session.commit()
        return ask(place, statement)

    whole = Expectation("expect_table_row_count_to_equal", {"value": ROWS})
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ServerDataset, "ask", changed)
            found = look(settings, folder, PARENTS, UNIQUE, STATES, whole, FRESH)
        assert len(asked) > 5 and found.failures == ()
        assert look(settings, folder, whole).state == "failed"  # without the snapshot
    finally:
        fill(session)


def test_a_copy_is_looked_at_like_the_downstream_and_pauses_nothing(shop, folder, tmp_path):
    settings, _ = shop
    folder.write(
        Suite(TABLE, (Expectation(MANY.expectation, {"min_value": ROWS + 1}, "pause"), STATES))
    )
    text = Path(settings.quality.suites).with_name("sluice.toml").read_text()
    (tmp_path / "copy.toml").write_text(text)
    done: QualitySummary = run_quality(
        settings, QualityRequest("copy", target=read_target(tmp_path / "copy.toml"))
    )
    (found,) = done.suites
    assert (found.on, found.state, found.ts, done.paused) == ("copy", "paused", 0, False)
    assert not RelayLog.open(settings.relay.url).control().apply_paused


@pytest.mark.slow
def test_an_edited_file_counts_and_is_left_alone(shop, folder):
    settings, _ = shop
    proposed(settings)
    path = folder.path(TABLE)
    path.write_text(path.read_text().replace('"new", ', ""))
    assert proposed(settings)[TABLE] is WriteResult.EDITED
    (found,) = run_quality(settings, QualityRequest(suites=(TABLE,))).suites
    assert found.state == "warned" and [failed.about for failed in found.failures] == ["state"]
    propose_suites(settings, [TABLE], lambda *_: None, over_edited=True)
    assert '"new", ' in path.read_text()


@pytest.mark.slow
def test_no_more_runs_are_kept_than_the_settings_say(shop, folder):
    settings, _ = shop
    runs = [look(settings, folder, STATES).run for _ in range(5)]
    docs = Path(QualityResults(settings).docs_index()).parent
    assert [run.run for run in QualityResults(settings).runs()] == runs[:1:-1]
    assert sorted(path.name for path in (docs / "runs").iterdir()) == runs[2:]
    index = (docs / "index.html").read_text()
    assert all((run in index) is (run in runs[2:]) for run in runs)
    assert all((docs / link).exists() for link in re.findall(r"href='([^']+)'", index))


def test_what_cannot_be_looked_at_is_told_and_does_not_keep_the_others_from_being_looked_at(
    shop, folder
):
    settings, _ = shop
    folder.write(Suite("shop.gone", (MANY,)))
    folder.write(Suite("shop.customers", (Expectation("expect_the_moon", {}),)))
    folder.write(
        Suite(
            TABLE,
            (Expectation(STATES.expectation, {**STATES.arguments, "column": "no such"}), MANY),
        )
    )
    found = {suite.suite: suite for suite in run_quality(settings, QualityRequest()).suites}
    assert (
        found["shop.gone"].state == "error"
        and "there is no table shop.gone" in found["shop.gone"].message
    )
    assert (
        found["shop.customers"].state == "error"
        and "expect_the_moon" in found["shop.customers"].message
    )
    assert found[TABLE].state == "failed" and "no such" in found[TABLE].failures[0].observed
    assert "there is no table shop.gone" in page(settings, found["shop.gone"])


ODD_SCHEMAS = "MyApp", "shop", "my.db", "50%"
ODD_TABLES = (
    "users",
    "order-items",
    "a b",
    "a.b",
    'say "x"',
    "x:y",
    "a :b \\:c",
    "n`n",
    "Größe",
    "表",
    "100%",
    "%s %% %(a)s",
)


@pytest.mark.slow
def test_tables_whose_names_need_quoting_are_proposed_for_and_looked_at(shop, folder):
    settings, session = shop
    names = [TableName("shop", table) for table in ODD_TABLES]
    names += [
        TableName(schema, table)
        for schema in set(ODD_SCHEMAS) - {"shop"}
        for table in ("users", "100%")
    ]
    try:
        for schema in set(ODD_SCHEMAS) - {"shop"}:
            session.execute(f"CREATE DATABASE {quote_name(schema)}")
        for number, (schema, table) in enumerate(names):
            place = f"{quote_name(schema)}.{quote_name(table)}"
            session.execute(
                f'CREATE TABLE {place} (n BIGINT PRIMARY KEY, `say "%s"` DOUBLE, state VARCHAR(9))'
            )
            session.execute(
                f"INSERT INTO {place} SELECT seq, 1.7e308 - seq, 'a' FROM"
                f" mysql.seq_1_to_{number + 30}"
            )
        session.commit()
        assert set(proposed(settings)) > {str(name) for name in names}
        done = run_quality(
            settings, QualityRequest(suites=tuple(exactly(str(name)) for name in names))
        )
        assert not [
            (f.expectation, f.about, f.observed) for one in done.suites for f in one.failures
        ]
        assert {one.suite: (one.state, one.message) for one in done.suites} == {
            str(n): (PASSED, "") for n in names
        }
    finally:
        for name in names:
            session.execute(
                f"DROP TABLE IF EXISTS {quote_name(name.schema)}.{quote_name(name.table)}"
            )
        for schema in set(ODD_SCHEMAS) - {"shop"}:
            session.execute(f"DROP DATABASE {quote_name(schema)}")


@pytest.mark.slow
def test_an_error_of_great_expectations_in_one_suite_ends_no_run(shop, folder, monkeypatch):
    settings, _ = shop
    proposed(settings, "shop.*")
    from sluice.expectations.gx.runner import SuiteRunner

    look_at = SuiteRunner.look

    def broken(self, suite, *more):
        if suite.name == "shop.customers":
            raise ValueError("theirs")
        return look_at(self, suite, *more)

    monkeypatch.setattr(SuiteRunner, "look", broken)
    done = run_quality(settings, QualityRequest(suites=("shop.*",)))
    assert {one.suite: one.state for one in done.suites} == {
        "shop.customers": "error",
        TABLE: PASSED,
    }


def test_without_suites_or_with_a_broken_file_it_says_so(shop, folder):
    settings, _ = shop
    with pytest.raises(QualityError, match="sluice quality init"):
        run_quality(settings, QualityRequest())
    folder.write(Suite(TABLE, (MANY,)))
    with pytest.raises(QualityError, match=r"no suite .* shop\.x"):
        run_quality(settings, QualityRequest(suites=("shop.x",)))
    folder.path(TABLE).write_text(
        'table = "shop.orders"\n[[expect]]\nexpectation = "expect_x"\nseverity = "loud"\n'
    )
    with pytest.raises(SuiteError, match=r"orders\.toml: expectation 1: severity = 'loud'"):
        run_quality(settings, QualityRequest())


@pytest.fixture
def bank(folder: SuiteFolder, tmp_path: Path, spark_remote: str) -> Settings:
    """A recording of a bank in an archive; its suites are to be in the folder `quality` beside."""
    url = (tmp_path / "relay").as_uri()
    few = committed(RECORDINGS / "shop")[400][0]
    relay = land_recording(RECORDINGS / "shop", url, 1000, few)
    archive_all(relay, Archive.open(f"{url}/archive"))
    path = tmp_path / "sluice.toml"
    path.write_text(
        f'[upstream]\npd-urls = "pd:2379"\n[relay]\nurl = "{url}"\n[downstream]\nhost ='
        f' "db"\n[spark]\nremote = "{spark_remote}"\n[[route]]\nschema-pattern ='
        ' "bank"\ntable-pattern = "ledger"\ntarget-schema = "books"\ntarget-table = "entries"\n'
    )
    return load_settings(path)


@pytest.mark.slow
def test_the_lake_is_looked_at_as_of_a_moment_by_spark(bank):
    last = RelayLog.open(bank.relay.url).last()
    folder = SuiteFolder(Path(bank.quality.suites))
    sound = (Expectation("expect_column_values_to_not_be_null", {"column": "id"}), UNIQUE_ID)
    wrong = (
        Expectation(
            "expect_column_values_to_be_between", {"column": "ver", "max_value": -1}, "pause"
        ),
        Expectation("expect_columns_and_types", {"columns": {"id": "int"}}),
        Expectation(
            "expect_references_to_have_parents",
            {"columns": ["email"], "parent": "books.entries", "parent_columns": ["memo"]},
            "warn",
        ),
        Expectation("expect_newest_to_be_recent", {"column": "updated", "hours": -1}),
    )
    folder.write(Suite("bank.account", sound + wrong))
    folder.write(
        Suite("books.entries", (Expectation("expect_key_to_be_unique", {"columns": ["src"]}),))
    )
    folder.write(Suite("bank.gone", sound))
    done = run_quality(bank, QualityRequest("lake", ts=last.hi))
    found = {suite.suite: suite for suite in done.suites}
    assert {(suite.on, suite.ts) for suite in done.suites} == {("lake", last.hi)}
    account = found["bank.account"]
    assert [failed.observed for failed in account.failures if "couldn't" in failed.observed] == []
    assert [failed.expectation for failed in account.failures] == [one.expectation for one in wrong]
    assert not done.paused and account.state == "paused", "the past pauses nothing"
    assert " keys in " in found["books.entries"].failures[0].observed, "by its name downstream"
    assert "no table that goes to bank.gone" in found["bank.gone"].message


def test_a_sum_that_must_not_change_is_compared_between_two_moments_by_the_archive(
    tmp_path, monkeypatch
):
    from sluice.expectations.gx.custom import ExpectSumToBeConstant

    monkeypatch.setattr(sums, "differences_between", partial(differences_between, run=run_locally))
    url = (tmp_path / "relay").as_uri()
    relay = land_recording(RECORDINGS / "shop", url, 1000)
    archive_all(relay, Archive.open(f"{url}/archive"))
    settings = parse_settings(
        {"upstream": {"pd-urls": "p"}, "relay": {"url": url}, "downstream": {"host": "d"}}
    )
    place = ReplicationDataset(settings)
    last = relay.last()
    place.ts = last.hi
    with using(place, settings):
        look = ExpectSumToBeConstant(
            table="bank.ledger", columns=["amt"], since=str(last.hi - tso.span(1000))
        ).look
        assert re.match(r"changed since .* amt by \+[\d.]+, in [\d,]+ rows", look(place).observed)
        look = ExpectSumToBeConstant(
            table="bank.account", columns=["id"], since=str(last.hi - tso.span(1000))
        ).look
        assert look(place).met


def test_expectations_of_the_replication_fail_when_it_is_not_what_it_should_be(shop, folder):
    settings, session = shop
    relay, now = RelayLog.open(settings.relay.url), tso.wall_clock()
    land(relay, relay.last().hi, now, now - 1)
    CheckpointTable.from_settings(session, settings.downstream, CLUSTER).save(Checkpoint(now, 3))
    session.commit()
    folder.write(propose_for_replication())
    (found,) = run_quality(settings, QualityRequest(suites=("replication",))).suites
    assert (found.on, found.state, found.failures) == ("replication", PASSED, ())
    late = Expectation("expect_lag_below", {"seconds": 0.001}, "warn")
    folder.write(
        Suite("replication", (late, Expectation("expect_windows_without_gaps", {"hours": 1})))
    )
    end = RelayLog.open(settings.relay.url).last().hi
    land(RelayLog.open(settings.relay.url), end + 10, end + 20, end + 15)
    (found,) = run_quality(settings, QualityRequest(suites=("replication",))).suites
    assert found.state == "failed"
    assert [failed.expectation for failed in found.failures] == [
        "expect_lag_below",
        "expect_windows_without_gaps",
    ]
    assert str(end) in found.failures[1].observed
