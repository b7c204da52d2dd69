"""A table with masked columns: copied, compared by other code, and never taken for whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.cli import group
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.history.as_of import differences_between, tables_as_of
from sluice.etl.history.clear_values import ClearValuesError
from sluice.etl.history.errors import NotYetLandedError
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.snapshots.preflight import downstream_table_of
from sluice.etl.restore import RestoreRequest, plan_restore
from sluice.etl.settings import Settings
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify.live_rows import open_live_rows
from sluice.tidb.schema import Schema
from tests.etl.copy.copying import CLUSTER
from tests.etl.copy.given_rows import NOW, serving_all
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE, masked, shifted
from tests.etl.story import table
from tests.etl.verify.replicas import Replica

PEOPLE = table(
    21,
    "people",
    "id int",
    "email varchar(40)",
    "phone varchar(20)",
    "n int",
    "born date",
    "account bigint",
    primary="id",
)
MASKS = {
    "email": "email",
    "phone": "digits",
    "n": {"constant": 5},
    "born": {"shift-days": 99, "by": "email"},
    "account": "digits",
}
RULE = {"tables": ["d.people"], "mask": MASKS, "rename": {"phone": "tel"}}
FILTERS = {"columns": [RULE], "mask": SECTION}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


def mail(number: int) -> str:
    return f"person{number}@example.org"


def phone(number: int) -> str:
    return f"+49 {number:04d}"


def born(number: int) -> str:
    return f"{1900 + number % 120}-02-28"


def account(number: int) -> int:
    return (number - 150) ** 7


@contextlib.contextmanager
def replica(server: MariaDBServer, folder: Path) -> Iterator[Replica]:
    schema = Schema(PEOPLE.schema_id, "d", "utf8mb4", "utf8mb4_bin")
    held = {
        PEOPLE.id: [
            [n, mail(n).encode() if n % 5 else None, phone(n).encode(), n % 7, born(n), account(n)]
            for n in range(300)
        ]
    }
    known = SourceSchema(NOW - 1, 5, (schema,), (PEOPLE,))
    with serving_all([PEOPLE], held, region_rows=50) as address:
        made = Replica(address, known, server, folder, parse_filter(FILTERS)[0])
        made.copy()
        yield made


def test_masked_rows_are_copied_and_compared(mariadb: MariaDBServer, tmp_path: Path) -> None:
    with replica(mariadb, tmp_path) as made:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, email, tel, n, CAST(born AS CHAR), account FROM d.people ORDER BY id"
            )
            assert list(cursor.fetchall()) == [
                (
                    n,
                    masked(mail(n), "email", 40) if n % 5 else None,
                    masked(phone(n), "digits"),
                    5,
                    shifted(born(n), 99, mail(n) if n % 5 else None),
                    masked(account(n), "digits"),
                )
                for n in range(300)
            ]
            found = made.compare()["d.people"].found
            assert (found.rows, found.apart) == (300, None)
            cursor.execute("UPDATE d.people SET email = %s WHERE id = 12", (mail(12),))
            connection.commit()
        apart = made.compare()["d.people"].found.apart
        assert apart is not None and apart.count == 1


def test_rows_that_are_looked_at_all_the_time_are_masked(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:

        class Upstream:
            address = made.address

            def definitions(self, ts: int) -> SourceSchema:
                return made.known

        with open_live_rows(made.settings, CLUSTER, Upstream(), 1.0) as live:
            found = live.compare(live.tables[PEOPLE.id], "id < 30")
        assert (found.rows, found.apart.count) == (30, 0)


def test_what_shows_clear_values_refuses_by_the_rules_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:
        settings: Settings = made.settings
        place = downstream_table_of(settings, PEOPLE)
        assert isinstance(place, str) and "[[filter.columns]] 1 (" in place
        why = r"would show clear values of columns that \[\[filter.columns\]\] 1 \("
        with pytest.raises(ClearValuesError, match=why):
            HistoryLog.open(settings)
        with pytest.raises(ClearValuesError, match=why):
            plan_restore(settings, RestoreRequest(NOW, ("d.people",)))
        with pytest.raises(ClearValuesError, match=why):
            tables_as_of(settings, NOW, ["d.people"])
        with pytest.raises(ClearValuesError, match=why):
            differences_between(settings, NOW - 1, NOW, ["d.people"])
        with pytest.raises(NotYetLandedError):  # behind the door
            tables_as_of(settings, NOW, ["d.people"], shows_values=False)
        clear = replace(settings, filters=parse_filter({})[0])
        with pytest.raises(Exception, match="nothing has landed yet"):
            HistoryLog.open(clear)


@pytest.mark.parametrize(
    "words",
    [
        ["find"],
        ["undo", "400000000000000000"],
        ["as-of", "1m", "d.people"],
        ["relay", "show", "--rows"],
        ["relay", "show", "--table", "d.people"],
        ["archive", "export", "d.people", "--catalog", "lake"],
    ],
)
def test_commands_that_show_values_refuse(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "sluice.toml").write_text(
        f"""
        [upstream]
        pd-urls = "http://127.0.0.1:1"
        [relay]
        url = "file://{tmp_path}/relay"
        [archive]
        url = "file://{tmp_path}/archive"
        [downstream]
        host = "127.0.0.1"
        [filter.mask]
        key-env = "{VARIABLE}"
        relay-log = "clear"
        [[filter.columns]]
        tables = ["d.people"]
        mask = {{ email = "email" }}
        """
    )
    found = CliRunner().invoke(group, [*words, "--config", str(tmp_path / "sluice.toml")])
    assert isinstance(found.exception, ClearValuesError), found.output
