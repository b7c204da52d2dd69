"""Rules that are proposed for personal data are rules: settings take them, and tables too."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.masks import masks_of
from sluice.etl.downstream import Checkpoint, CheckpointTable, MySQLSession
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.etl.settings.rules import parse_filter, parse_routes
from sluice.expectations.mask_proposals import (
    MaskProposal,
    downstream_sample,
    propose_masks,
    rules_text,
)
from sluice.expectations.server_dataset import open_downstream_dataset
from sluice.relay import RelayLog
from sluice.tidb import tso
from sluice.tidb.schema import Table
from tests.etl.copy.backfill.running import DATABASE, pipeline, typing
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION
from tests.etl.story import column, table
from tests.relay.relaykit import land

PEOPLE = table(
    11,
    "people",
    "id int",
    "email varchar(80)",
    "mail2 varchar(9) not null",
    "phone varchar(30)",
    replace(column(5, "x varchar(40)"), name="full name"),
    "birth date",
    "born date not null",
    "iban char(34)",
    "ip varbinary(16)",
    "ip2 datetime not null",
    "note varchar(99)",
    "mobile tinyint",
    "username varchar(30)",
    primary="id",
    unique=("username",),
)
THINGS = table(12, "things", "id int", "filename varchar(20)", "name varchar(9)", primary="id")
SECRET = "ann@example.org"


def settings(*rules: dict[str, Any]) -> Settings:
    found = parse_filter({"columns": list(rules), "mask": SECTION})[0]
    return Settings(
        Upstream("unused"), Relay("file:///unused"), Downstream(host="unused"), filters=found
    )


def notes(of: Table, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
    assert "id" not in columns and "email" not in columns
    return {"note": [SECRET] * 9 + ["none"]} if of is PEOPLE else {}


def proposed(of: Settings, *tables: Table) -> dict[str, tuple[str, str]]:
    return {
        column.name: (column.kind, str(column.mask))
        for proposal in propose_masks(of, tables, notes)
        for column in proposal.columns
    }


def test_columns_are_proposed_with_masks_that_fit_them() -> None:
    assert proposed(settings(), PEOPLE, THINGS) == {
        "email": ("email", "email"),
        "mail2": ("email", "partial '0'"),
        "phone": ("phone", "digits"),
        "full name": ("name", "hash"),
        "birth": ("birth", "null"),
        "born": ("birth", "constant '1970-01-01'"),
        "iban": ("iban", "partial '4'"),
        "ip": ("ip", "null"),
        "ip2": ("ip", "None"),
        "note": ("email", "email"),
        "username": ("name", "null"),
    }


def test_columns_of_unique_keys_are_proposed_with_masks_that_keep_them_apart() -> None:
    members = table(
        13,
        "members",
        "id int",
        "username varchar(64)",
        "phone varchar(30)",
        "email varchar(20) not null",
        primary="id",
        unique=("username", "phone", "email"),
    )
    logins = table(14, "logins", "username varchar(64)", primary="username")
    (first, second) = propose_masks(settings(), [members, logins], notes)
    found = {one.name: (str(one.mask), one.refusal) for one in first.columns}
    assert found["username"] == ("hash", "") and found["phone"] == ("digits", "")
    assert "which the key" in found["email"][1], "a short hash may be alike in two rows"
    assert [one.name for one in second.columns if not one.refusal] == []


def test_columns_that_a_rule_mentions_are_not_proposed() -> None:
    found = proposed(
        settings(
            {"tables": ["d.people"], "leave-out": ["EMAIL"], "rename": {"phone": "tel"}},
            {"tables": ["d.*"], "mask": {"Full Name": "null", "iban": "null"}},
        ),
        PEOPLE,
    )
    assert not found.keys() & {"email", "phone", "full name", "iban"}
    assert "note" in found
    kept = {"tables": ["d.people"], "keep": ["id", "email", "username"]}
    assert proposed(settings(kept), PEOPLE) == {}


def test_tables_that_are_not_replicated_are_not_looked_at() -> None:
    ignored = parse_filter({"ignore-table": [{"db-name": "d", "tbl-name": "people"}]})[0]
    assert proposed(replace(settings(), filters=ignored), PEOPLE, THINGS) == {}


def test_what_no_rule_can_hide_is_named_with_the_reason() -> None:
    rows = {"rows": [{"tables": ["d.people"], "where": "note = 'x'"}]}
    route = {"table-pattern": "p*", "target-schema": "d", "target-table": "all"}
    for own, what in (
        (replace(settings(), filters=parse_filter(rows)[0]), "[[filter.rows]] 1"),
        (
            replace(settings(), routes=parse_routes([{"schema-pattern": "d", **route}])),
            "d.people is merged with other tables",
        ),
    ):
        (proposal,) = propose_masks(own, [PEOPLE], notes)
        refusals = {column.name: column.refusal for column in proposal.columns}
        assert what in refusals["note"]
        why = f"by the shape of 90% of 10 values, can't be hidden: {refusals['note']}"
        assert f"# note: email, {why}" in rules_text(own, [proposal])


def text(of: Settings) -> str:
    return rules_text(of, list(propose_masks(of, [PEOPLE, THINGS], notes)))


def test_the_text_is_rules_that_mask_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_MASK_KEY", KEY)
    found = text(replace(settings(), filters=parse_filter({})[0]))
    assert SECRET not in found and "none" not in found
    assert "# note: email, by the shape of 90% of 10 values\n" in found
    assert "# username: name, by its name\n" in found
    rules = tomllib.loads(f"{found}\n")["filter"]
    shaped = parse_filter(rules)[0].narrowed(PEOPLE)
    assert masks_of(shaped).keys() == {
        "email", "mail2", "phone", "full name", "birth", "born", "iban", "ip", "note", "username",
    }  # fmt: skip
    assert "ip2" not in [column.name for column in shaped.columns if column.public]


def test_a_section_of_masks_that_is_there_is_not_proposed_again() -> None:
    masking = settings({"tables": ["d.people"], "mask": {"email": "null"}})
    assert "[filter.mask]" not in text(masking) and "[[filter.columns]]" in text(masking)


@pytest.mark.parametrize("kind", ["file", "kafka"])
def test_columns_of_files_and_topics_are_masked_too(kind: str) -> None:
    assert text(replace(settings(), downstream=Downstream(type=kind))) == text(settings())


def test_nothing_is_proposed_where_nothing_looks_like_it() -> None:
    assert rules_text(settings(), list(propose_masks(settings(), [THINGS], notes))) == ""


def test_values_come_from_the_downstream_under_its_names(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    monthly = table(13, "log", "id int", "a varchar(40)", "b varchar(40)", primary="id")
    routes = parse_routes(
        [
            {
                "schema-pattern": "d",
                "table-pattern": "log",
                "target-schema": "e",
                "target-table": "journal",
            }
        ]
    )
    own = replace(
        settings({"tables": ["d.log"], "rename": {"b": "b2"}}),
        relay=Relay((tmp_path / "relay").as_uri()),
        downstream=mariadb.downstream,
        routes=routes,
    )
    ts = tso.wall_clock()
    land(RelayLog.open(own.relay.url), ts - 1000, ts, ts - 500)
    session = MySQLSession(own.downstream)
    session.connect()
    try:
        checkpoints = CheckpointTable.from_settings(session, own.downstream, 1)
        checkpoints.create()
        checkpoints.save(Checkpoint(ts, 3), first=True)
        session.execute("CREATE DATABASE e")
        session.execute(
            "CREATE TABLE e.journal (id INT PRIMARY KEY, a VARCHAR(40), b2 VARCHAR(40))"
        )
        for number in range(8):
            session.execute(
                f"INSERT INTO e.journal VALUES ({number}, 'u{number}@example.org', 'x')"
            )
        session.commit()
    finally:
        session.close()
    found: list[MaskProposal] = []
    with open_downstream_dataset(own) as place:
        assert downstream_sample(own, place)(monthly, ["a", "b"])["b"] == ["x"] * 8
        found += propose_masks(own, [monthly, THINGS], downstream_sample(own, place))
    ((column,),) = (proposal.columns for proposal in found)
    assert (column.name, column.kind) == ("a", "email")


@pytest.mark.slow
def test_the_command_reads_the_upstreams_tables_and_the_downstreams_rows(
    mariadb_server: MariaDBServer, tmp_path: Path
) -> None:
    with pipeline(mariadb_server, "sc://127.0.0.1:1", tmp_path) as running:
        typed = typing(running.settings, tmp_path)
        running.fill(transactions=10, rows=5)
        nothing = typed("quality", "propose")
        assert nothing.output.endswith("mentions looks like personal data\n"), nothing.output
        running.control.add_column(DATABASE, "load_1", "phone")
        running.downstream(f"UPDATE {DATABASE}.txn SET note = CONCAT('u', id, '@example.org')")
        found = typed("quality", "propose", f"{DATABASE}.*").stdout
        rules = tomllib.loads(found)["filter"]["columns"]
        assert rules == [
            {"tables": [f"{DATABASE}.load_1"], "mask": {"phone": "digits"}},
            {"tables": [f"{DATABASE}.txn"], "mask": {"note": "email"}},
        ]
        assert "@" not in found
