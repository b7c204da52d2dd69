"""Addresses of databases from Airflow connections: what they give, and what counts before them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.copy.tidb_sql import TidbSql
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Settings, SettingsError, load_settings, parse_settings
from sluice.etl.settings.airflow_connections import resolve_connections, use_connections
from sluice.etl.settings.pipelines import pipelines
from sluice.etl.spark.remote_workers import with_credentials
from sluice.etl.tasks.form_fields import restore_request
from sluice.relay.storage import credentials
from tests.devstack.sql_harness import port as tidb_port
from tests.etl.mariadb_fixture import MariaDBServer

SECRET = "Pa55-wort"


@pytest.fixture(autouse=True)
def own_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setattr(credentials, "_providers", {})
    monkeypatch.setattr(credentials, "_cached", {})
    yield
    use_connections({})


def connect(patch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    document = json.dumps({"conn_type": "mysql", **fields})
    patch.setenv(f"AIRFLOW_CONN_{name.upper()}", document)


def parsed(downstream: dict[str, Any], upstream: dict[str, Any] | None = None) -> Settings:
    return parse_settings(
        {
            "upstream": {"pd-urls": "-", **(upstream or {})},
            "relay": {"url": "file:///relay"},
            "downstream": downstream,
        }
    )


def test_a_connection_alone_opens_the_downstream(
    mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mariadb.connect() as session, session.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS writer@'127.0.0.1'")
        cursor.execute("CREATE USER writer@'127.0.0.1' IDENTIFIED BY %s", (SECRET,))
        cursor.execute("GRANT ALL ON *.* TO writer@'127.0.0.1'")
    where = {"host": "127.0.0.1", "port": mariadb.port}
    connect(monkeypatch, "shop_db", login="writer", password=SECRET, **where)
    settings = parsed({"connection": "shop_db"})
    assert settings.downstream_name.startswith(f"127.0.0.1:{mariadb.port},")
    opened = MySQLSession(settings.downstream)
    opened.connect()
    assert opened.query("SELECT CURRENT_USER() = 'writer@127.0.0.1'") == [(1,)]
    opened.close()
    assert SECRET not in repr(settings)


def test_the_section_s_own_keys_count_first(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "shop_db", host="db", port=3307, login="airflow", password=SECRET)
    monkeypatch.setenv("OWN", "another")
    found = parsed({"connection": "shop_db", "user": "writer", "password-env": "OWN"}).downstream
    assert (found.host, found.port, found.user) == ("db", 3307, "writer")
    assert found.password() == "another"


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, ("", "", "", True)),
        ({"ssl": {"ca": "/ca", "cert": "/c", "key": "/k"}}, ("/ca", "/c", "/k", True)),
        ({"ssl": '{"ca": "/ca"}', "ssl_mode": "verify_ca"}, ("/ca", "", "", False)),
        ({"ssl": {"ca": "/ca"}, "ssl_mode": "DISABLED"}, ("", "", "", True)),
    ],
)
def test_tls_is_as_the_connection_has_it(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], expected: tuple[object, ...]
) -> None:
    connect(monkeypatch, "shop_db", host="db", extra=extra)
    it = parsed({"connection": "shop_db"}).downstream
    assert (it.ssl_ca, it.ssl_cert, it.ssl_key, it.ssl_verify_identity) == expected
    request = restore_request({"until": None, "connection": "shop_db"})
    assert parsed(request.target["downstream"]).downstream.ssl_ca == it.ssl_ca


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"host": "db", "extra": {"ssl_mode": "REQUIRED"}},
        {"host": "db", "extra": {"ssl": {"capath": "/certificates"}}},
        {"host": "db", "extra": {"ssl": "ca.pem"}},
    ],
    ids=["no host", "TLS without authorities", "a folder of authorities", "no JSON"],
)
def test_a_connection_that_can_t_be_used_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    connect(monkeypatch, "shop_db", password=SECRET, **fields)
    with pytest.raises(SettingsError, match=r"\[downstream\] connection shop_db: ") as caught:
        parsed({"connection": "shop_db"})
    assert SECRET not in str(caught.value)


def test_a_worker_process_uses_the_password_that_its_task_has_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, "shop_db", host="db", password=SECRET)
    settings = parsed({"connection": "shop_db"})
    resolved = resolve_connections(settings)
    monkeypatch.delenv("AIRFLOW_CONN_SHOP_DB")
    use_connections(resolved)
    assert settings.downstream.password() == SECRET


def _passwords(addresses: Iterator[TidbAddress]) -> Iterator[str]:
    for address in addresses:
        yield address.password()


def test_tidb_is_read_by_a_connection_whose_password_spark_s_workers_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tidb_port("types", users={"copier": SECRET}) as opened:
        where = {"host": "127.0.0.1", "port": opened.server.port}
        connect(monkeypatch, "tidb", login="copier", password=SECRET, **where)
        settings = parsed({"host": "db"}, {"sql-connection": "tidb"})
        address = TidbAddress.from_settings(settings.upstream)
        source = TidbSql.now(address)
        assert source.position and SECRET not in json.dumps(source.spec())
    sent = cloudpickle.dumps(with_credentials(_passwords))
    assert SECRET.encode() not in sent
    monkeypatch.delenv("AIRFLOW_CONN_TIDB")
    monkeypatch.setattr(credentials, "_providers", {})
    monkeypatch.setattr(credentials, "_cached", {})
    assert list(pickle.loads(sent)(iter([address]))) == [SECRET]


def test_two_pipelines_with_one_connection_have_one_checkpoint_and_the_second_doesn_t_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "shop_db", host="db")
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(
            f'[upstream]\npd-urls = "-"\n[relay]\nurl = "file:///{name}"\n'
            '[downstream]\nconnection = "shop_db"\n'
        )
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    assert load_settings(tmp_path / "a.toml").downstream.host == "db"
    with pytest.raises(SettingsError, match="connection shop_db"):
        _ = pipelines()["b"].settings
