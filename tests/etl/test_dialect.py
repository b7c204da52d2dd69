"""What a server can do is told from what it calls itself.

Nothing else asks for a product's name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.etl.changes.dialect import Dialect, UnknownServerError

SERVERS = {
    "10.11.14-MariaDB-0+deb12u2-log": ("MariaDB", (10, 11, 14)),
    "5.5.5-10.6.12-7-MariaDB-enterprise": ("MariaDB", (10, 6, 12)),
    "5.7.44-log": ("MySQL", (5, 7, 44)),
    "8.0.36-28": ("MySQL", (8, 0, 36)),
    "8.4.0": ("MySQL", (8, 4, 0)),
    "8.0.mysql_aurora.3.05.2": ("MySQL", (8, 0, 0)),
    "5.7.25-TiDB-v6.6.0": ("TiDB", (6, 6, 0)),
    "8.0.11-TiDB-v7.5.1-alpha": ("TiDB", (7, 5, 1)),
    "8.0.11-TiDB-Serverless": ("TiDB", (0, 0, 0)),
}


@pytest.mark.parametrize("version", SERVERS)
def test_product_and_version_are_read_from_the_version_string(version: str) -> None:
    found = Dialect.from_version(version)
    assert (found.product, found.version, found.text) == (*SERVERS[version], version)


def test_a_server_that_is_none_of_the_three_is_named() -> None:
    with pytest.raises(UnknownServerError, match="Doris"):
        Dialect.from_version("Doris")


def test_only_where_a_rollback_undoes_it_rows_go_by_load_data() -> None:
    sent = {text: Dialect.from_version(text).supports_transactional_load for text in SERVERS}
    assert {text for text, loads in sent.items() if not loads} == {
        text for text in SERVERS if "TiDB" in text
    }
    assert not Dialect.from_version("8.4.0", {"local_infile": "OFF"}).supports_transactional_load
    assert Dialect.from_version("8.4.0", {"local_infile": "1"}).supports_transactional_load


def test_statements_are_sent_ahead_only_to_servers_that_are_known_to_take_them() -> None:
    taken = {
        "10.11.1-MariaDB": True,
        "5.7.44": False,
        "8.0.36": True,
        "9.7.4-2": True,
        "5.7.25-TiDB-v8.5.0": False,
    }
    assert {text: Dialect.from_version(text).supports_pipelining for text in taken} == taken
    assert not Dialect.from_version("8.4.0", {"local_infile": "OFF"}).supports_pipelining


def test_each_server_is_asked_for_table_ids_in_its_own_tables() -> None:
    found = {
        text: re.search(r"INNODB_\w+|TIDB_TABLE_ID", Dialect.from_version(text).table_ids)
        for text in ("10.11.1-MariaDB", "5.7.44", "8.0.36", "5.7.25-TiDB-v6.6.0")
    }
    assert [match[0] for match in found.values() if match] == [
        "INNODB_SYS_TABLES",
        "INNODB_SYS_TABLES",
        "INNODB_TABLES",
        "TIDB_TABLE_ID",
    ]


def test_no_other_module_asks_for_a_product() -> None:
    asks = re.compile(r"is_mariadb|mariadb: bool|\.product\b|\"mariadb\" in", re.IGNORECASE)
    found = [
        path.name
        for path in Path(__file__).parents[2].glob("etl/**/*.py")
        if path.name != "dialect.py" and asks.search(path.read_text())
    ]
    assert found == []
