"""A restore as a job: what hinders it, what it leaves alone, what it takes back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import Prepare, run_apply
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.history.as_of.api import PlanExecutor
from sluice.etl.restore import (
    FilesRequest,
    RestoreError,
    RestoreMismatchError,
    RestoreRequest,
    cancel_restore,
    create_or_resume,
    plan_files,
    plan_restore,
    run_restore,
)
from sluice.etl.settings import Downstream, File, Settings
from sluice.etl.settings.rules import parse_filter, parse_routes
from sluice.etl.tasks.form_fields import restore_request
from sluice.relay import RelayCorruptError, RelayLog
from sluice.relay.archive import Archive, Pins
from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    DONE,
    FAILED,
    PAUSE,
    PAUSED,
    Job,
    JobCounts,
    JobOverlapError,
    JobRun,
    Runner,
)
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.restore.restoring import INTO, Here, archive_of, restore, settings_of
from tests.etl.snapshots import differences

SHOP = RECORDINGS / "shop"
MID, LABEL = 470614793860415502, "b_mid"
CLUSTER = 7


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The relay log of the recording `shop`, with its archive; nobody changes it but by jobs."""
    return archive_of("shop", tmp_path_factory.mktemp("shop"), 400, windows_a_volume=1)


def tables(server: MariaDBServer, like: str = "%") -> set[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) FROM information_schema.TABLES WHERE"
            " TABLE_SCHEMA LIKE %s AND TABLE_SCHEMA NOT IN ('mysql', 'information_schema',"
            " 'performance_schema', 'sys')",
            (like,),
        )
        return {str(name) for (name,) in cursor.fetchall()}


def databases(server: MariaDBServer) -> set[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        return {str(name) for (name,) in cursor.fetchall()} - {
            "mysql",
            "information_schema",
            "performance_schema",
            "sys",
        }


def execute(server: MariaDBServer, *statements: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


class Ordering(Here):
    """Gives the job an order before its n-th batch of changes is prepared."""

    def __init__(self, job: Job, what: str, at: int) -> None:
        self._job, self._what, self._left = job, what, at

    @contextmanager
    def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> Iterator[Prepare]:
        with super().steps(own, url, without_rows) as prepare:

            def ordered(windows: Any) -> Any:
                self._left -= 1
                if not self._left:
                    self._job.order(self._what, "test")
                return prepare(windows)

            yield ordered


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch for each window of the archive."""
    monkeypatch.setattr("sluice.etl.restore.request._MAX_ROWS", 1)


@pytest.mark.slow
def test_beside_the_running_pipeline_its_tables_and_its_checkpoint_are_left_alone(
    mariadb: MariaDBServer, shop: str
) -> None:
    settings = settings_of(mariadb, shop)
    run_apply(settings, until_ts=MID, run_seconds=240, prepare=local_preparer(settings))
    before = read_checkpoint(settings.target, CLUSTER)
    others = databases(mariadb)
    ends = RelayLog.open(shop).last()
    assert ends is not None
    summary = restore(settings, RestoreRequest(ends.hi))
    assert summary.tables == 4 and summary.changes > 0
    assert differences(SHOP, "e_end", mariadb, INTO) == differences(SHOP, LABEL, mariadb) == []
    found = read_checkpoint(settings.target, CLUSTER)
    assert (found, found and found.process) == (before, before and before.process)
    assert databases(mariadb) == others | {"bank_restored"}
    assert Pins(Archive.open(settings.archive_url).storage).all() == {}


@pytest.mark.slow
def test_tables_are_restored_whole_whatever_rules_leave_of_them_downstream(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    # one of its own: a relay log that was applied keeps where
    shop = archive_of("shop", tmp_path / "shop", 400, windows_a_volume=1)
    rules = {
        "columns": [{"tables": ["bank.ledger"], "leave-out": ["memo"]}],
        "rows": [{"tables": ["bank.cart"], "where": "uid < 100"}],
    }
    settings = replace(settings_of(mariadb, shop), filters=parse_filter(rules)[0])
    run_apply(settings, until_ts=MID, run_seconds=240, prepare=local_preparer(settings))
    narrow = [execute(mariadb, f"SELECT * FROM bank.{name}") for name in ("ledger", "cart")]
    request = RestoreRequest(MID)
    notes = plan_restore(settings, request).lines()
    files = plan_files(settings, FilesRequest(MID, (), tmp_path / "files")).lines()
    for rule in ("bank.ledger: .*filter.columns.. 1 (leave-out memo)", "bank.cart: .*uid < 100"):
        found = re.compile(r"note +" + rule.replace("(", r"\(").replace(")", r"\)"))
        assert any(found.match(line) for line in notes) and any(map(found.match, files))
    restore(settings, request)
    assert differences(SHOP, LABEL, mariadb, INTO) == []
    assert narrow == [execute(mariadb, f"SELECT * FROM bank.{n}") for n in ("ledger", "cart")]
    ends = RelayLog.open(shop).last()
    assert ends is not None
    run_apply(settings, until_ts=ends.hi, run_seconds=240, prepare=local_preparer(settings))
    restore(settings, RestoreRequest(ends.hi, into="{schema}_end"))
    for name, columns, where in (
        ("ledger", ["id", "src", "dst", "amt", "at"], "TRUE"),
        ("cart", ["*"], "uid < 100"),
    ):
        wanted = f"SELECT {', '.join(columns)} FROM bank_end.{name} WHERE {where}"
        assert sorted(execute(mariadb, wanted), key=repr) == sorted(
            execute(mariadb, f"SELECT * FROM bank.{name}"), key=repr
        )


def test_only_the_tables_that_are_asked_for_are_restored(mariadb: MariaDBServer, shop: str) -> None:
    settings = settings_of(mariadb, shop)
    request = RestoreRequest(MID, ("bank.c*", "bank.account"))
    plan = plan_restore(settings, request)
    assert plan.to.endswith(", database bank_restored") and "{schema}" not in "".join(plan.lines())
    assert {table.full_name for table in plan.asked} == {"bank.cart", "bank.account"}
    assert plan.cost.changes < plan_restore(settings, RestoreRequest(MID)).cost.changes / 2
    restore(settings, request)
    assert tables(mariadb) == {"bank_restored.cart", "bank_restored.account"}


@pytest.mark.slow
def test_the_progress_of_some_tables_goes_by_their_share_of_the_log(
    mariadb: MariaDBServer, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, request = settings_of(mariadb, shop), RestoreRequest(MID, ("bank.cart",))
    done: list[JobCounts] = []
    real = JobRun.did

    def did(run: JobRun, table: str, counts: JobCounts) -> None:
        done.append(counts)
        real(run, table, counts)

    monkeypatch.setattr(JobRun, "did", did)
    restore(settings, request)
    # the files have the other tables' changes, too, and the plan counts none of those
    planned = plan_restore(settings, request).cost.log_bytes
    assert 0.7 < sum(done, JobCounts()).bytes / planned < 1.3


def test_a_table_that_is_there_is_refused_until_its_name_is_typed_again_and_replaced_then(
    mariadb: MariaDBServer, shop: str
) -> None:
    settings = settings_of(mariadb, shop)
    execute(
        mariadb, "CREATE DATABASE bank_restored", "CREATE TABLE bank_restored.cart (mine INT)",
        "CREATE TABLE bank_restored.other (mine INT)",
    )  # fmt: skip
    request = RestoreRequest(MID, ("bank.cart",), verify=False)
    with pytest.raises(
        RestoreError, match=r"bank_restored\.cart is there already: .*--replace bank_restored\.cart"
    ):
        restore(settings, request)
    assert tables(mariadb) == {"bank_restored.cart", "bank_restored.other"}
    restore(settings, replace(request, replacing=("bank_restored.cart",)))
    assert tables(mariadb) == {"bank_restored.cart", "bank_restored.other"}
    assert execute(mariadb, "SELECT COUNT(*) FROM bank_restored.cart") == [(1229,)]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE VIEW bank_restored.cart AS SELECT 1", "it is no table but a view"),
        (
            (
                "CREATE TRIGGER bank_restored.t BEFORE INSERT ON bank_restored.cart FOR EACH ROW"
                " SET @a = 1"
            ),
            "it has triggers",
        ),
        (
            (
                "CREATE TABLE bank_restored.child (a INT, FOREIGN KEY (a) REFERENCES"
                " bank_restored.cart (a))"
            ),
            "bank_restored.child has a foreign key to it",
        ),
    ],
)
def test_what_cannot_be_replaced_is_refused_by_name(
    mariadb: MariaDBServer, shop: str, statement: str, why: str
) -> None:
    execute(mariadb, "CREATE DATABASE bank_restored")
    if "VIEW" not in statement:
        execute(mariadb, "CREATE TABLE bank_restored.cart (a INT PRIMARY KEY)")
    execute(mariadb, statement)
    request = RestoreRequest(MID, ("bank.cart",), replacing=("bank_restored.cart",))
    assert any(
        f"can't be replaced: {why}" in one
        for one in plan_restore(settings_of(mariadb, shop), request).problems
    )


def test_where_the_pipeline_writes_nothing_is_restored_to(
    mariadb: MariaDBServer, shop: str
) -> None:
    with pytest.raises(
        RestoreError, match="the pipeline replicates to the databases bank of this server"
    ):
        restore(settings_of(mariadb, shop), RestoreRequest(MID, into="{schema}"))
    target = {"downstream": {"host": "localhost", "port": mariadb.port}}
    with pytest.raises(
        RestoreError, match="the pipeline replicates to the databases bank of this server"
    ):
        restore(settings_of(mariadb, shop), RestoreRequest(MID, into="{schema}", target=target))
    routes = parse_routes(
        [{"schema-pattern": "bank", "table-pattern": "cart", "target-schema": "bank_eu"}]
    )
    request = RestoreRequest(MID, ("bank.account",), into="{schema}_eu")
    problems = plan_restore(replace(settings_of(mariadb, shop), routes=routes), request).problems
    assert any("replicates to the databases bank_eu of this server" in one for one in problems)


@pytest.mark.slow
def test_another_server_gets_the_names_of_the_upstream_whatever_the_pipeline_writes_to(
    mariadb: MariaDBServer, shop: str, tmp_path: Path
) -> None:
    settings = replace(
        settings_of(mariadb, shop),
        downstream=Downstream(type="file"),
        file=File(dir=str(tmp_path / "files")),
    )
    with pytest.raises(RestoreError, match="type is file: a database is restored to a database"):
        restore(settings, RestoreRequest(MID))
    target = tmp_path / "elsewhere.toml"
    target.write_text(f'[downstream]\nhost = "127.0.0.1"\nport = {mariadb.port}\n')
    restore(
        settings,
        restore_request({"until": str(MID), "target": str(target), "verify": False}),
    )
    assert differences(SHOP, LABEL, mariadb) == []
    assert databases(mariadb) == {"bank"}


def test_what_there_was_not_is_named(mariadb: MariaDBServer, shop: str) -> None:
    settings = settings_of(mariadb, shop)
    assert (
        "no table had such a name"
        in plan_restore(settings, RestoreRequest(MID, ("bank.nothing",))).problems[0]
    )
    with pytest.raises(RestoreError, match="isn't landed yet"):
        plan_restore(settings, RestoreRequest(MID + (1 << 50)))
    with pytest.raises(RestoreError, match=r"the archive .* begins at"):
        plan_restore(settings, RestoreRequest(MID - (1 << 50)))
    with pytest.raises(RestoreError, match=r"must contain \{schema\}"):
        plan_restore(settings, RestoreRequest(MID, into="restored"))


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 3])
def test_a_paused_restore_goes_on_where_it_was(
    mariadb: MariaDBServer, shop: str, small_batches: None, at: int
) -> None:
    settings = settings_of(mariadb, shop, max_rows=1)
    job = create_or_resume(settings, RestoreRequest(MID, verify=False), "test")
    assert run_restore(settings, job, Runner("test"), ways=Ordering(job, PAUSE, at)).state == PAUSED
    assert create_or_resume(settings, RestoreRequest(MID, verify=False), "test").id == job.id
    with pytest.raises(JobOverlapError):
        create_or_resume(settings, RestoreRequest(MID, ("bank.cart",)), "test")
    summary = run_restore(settings, job, Runner("test"), ways=Here())
    assert summary.state == job.entry().state == DONE
    assert differences(SHOP, LABEL, mariadb, INTO) == []
    assert databases(mariadb) == {"bank_restored"}


@pytest.mark.slow
def test_a_cancelled_restore_leaves_nothing_and_puts_back_what_it_was_to_replace(
    mariadb: MariaDBServer, shop: str, small_batches: None
) -> None:
    settings = settings_of(mariadb, shop, max_rows=1)
    execute(
        mariadb,
        "CREATE DATABASE bank_restored",
        "CREATE TABLE bank_restored.cart AS SELECT 77 AS mine",
    )
    request = RestoreRequest(MID, replacing=("bank_restored.cart",), verify=False)
    for by_itself in (True, False):
        job = create_or_resume(settings, request, "test")
        order = CANCEL if by_itself else PAUSE
        run_restore(settings, job, Runner("test"), ways=Ordering(job, order, 2))
        if not by_itself:
            assert len(tables(mariadb, "bank%")) > 1
            assert cancel_restore(settings, job, Runner("test")).left == ()
        assert job.entry().state == CANCELLED
        assert databases(mariadb) == {"bank_restored"}
        assert tables(mariadb) == {"bank_restored.cart"}
        assert execute(mariadb, "SELECT * FROM bank_restored.cart") == [(77,)]
    assert Pins(Archive.open(settings.archive_url).storage).all() == {}


class Meddling(Here):
    """Somebody writes to a restored table before it is verified."""

    def __init__(self, server: MariaDBServer, statement: str) -> None:
        self._server, self._statement = server, statement

    def past(self) -> PlanExecutor:
        execute(self._server, self._statement)
        return super().past()


@pytest.mark.quick_cases("UPDATE")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE bank_restored.account SET balance = balance + 1 WHERE id = 7",
        "DELETE FROM bank_restored.account WHERE id = 7",
        (
            "INSERT INTO bank_restored.account SELECT 9999, 'x', balance, ver, updated FROM"
            " bank_restored.account LIMIT 1"
        ),
    ],
)
def test_a_table_that_is_not_what_it_was_is_named_and_stays_until_the_job_is_given_up(
    mariadb: MariaDBServer, shop: str, statement: str
) -> None:
    settings = settings_of(mariadb, shop)
    execute(mariadb, "CREATE DATABASE IF NOT EXISTS kept")
    job = create_or_resume(settings, RestoreRequest(MID, ("bank.account", "bank.cart")), "test")
    with pytest.raises(
        RestoreMismatchError, match=r"restored tables differ: bank\.account has \d+ rows"
    ) as caught:
        run_restore(settings, job, Runner("test"), ways=Meddling(mariadb, statement))
    assert "bank.cart" not in str(caught.value)
    assert job.entry().state == FAILED
    assert cancel_restore(settings, job, Runner("test")).left == ()
    assert databases(mariadb) == {"kept"}


@pytest.mark.slow
def test_a_damaged_file_of_the_archive_stops_it_with_its_place_and_it_goes_on_once_that_is_whole(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    settings = settings_of(mariadb, archive_of("shop", tmp_path, 400))
    path = max(Path(settings.archive_url.removeprefix("file://")).glob("log/*/*.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    last = RelayLog.open(settings.relay.url).last()
    assert last is not None
    request = RestoreRequest(last.hi, verify=False)
    with pytest.raises(RelayCorruptError, match=path.name):
        restore(settings, request)
    path.write_bytes(whole)
    restore(settings, request)
    assert differences(SHOP, "e_end", mariadb, INTO) == []
