"""PD's and Kafka's addresses from Airflow connections, and what counts before them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.settings import Settings, SettingsError, parse_settings
from sluice.etl.settings.airflow_connections import resolve_connections, use_connections

SECRET = "Pa55-wort"


@pytest.fixture(autouse=True)
def own_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    yield
    use_connections({})


def connect(patch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    patch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "generic", **fields}))


def parsed(**sections: dict[str, Any]) -> Settings:
    document = {
        "upstream": {"pd-urls": "-"},
        "relay": {"url": "file:///relay"},
        "downstream": {"host": "db"},
    }
    return parse_settings(document | sections)


def test_pd_is_where_the_connection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    tls = {"ssl": {"ca": "/ca", "cert": "/c", "key": "/k"}, "ssl_mode": "VERIFY_CA"}
    connect(monkeypatch, "pd", host="pd-1, pd-2:2389", port=2379, extra=tls)
    found = parsed(upstream={"connection": "pd"}).upstream
    assert found.pd_urls == "pd-1:2379,pd-2:2389"
    assert (found.ssl_ca, found.ssl_cert, found.ssl_key) == ("/ca", "/c", "/k")
    own = parsed(upstream={"connection": "pd", "pd-urls": "other:1", "ssl-ca": "/own"}).upstream
    assert (own.pd_urls, own.ssl_ca, own.ssl_cert) == ("other:1", "/own", "/c")
    connect(monkeypatch, "nowhere", port=2379)
    with pytest.raises(SettingsError, match=r"\[upstream\] connection nowhere: .*no host"):
        parsed(upstream={"connection": "nowhere"})


def test_brokers_and_options_are_those_of_the_connection_and_secrets_stay_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = {
        "bootstrap.servers": "k-1:9093,k-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "sluice",
        "sasl.password": SECRET,
        "group.id": "of others",
        "auto.offset.reset": "earliest",
    }
    connect(monkeypatch, "topics", extra=extra)
    kafka = {
        "connection": "topics", "savepoint": "/s", "client": {"sasl.mechanism": "PLAIN"},
    }  # fmt: skip
    settings = parsed(downstream={"type": "kafka"}, kafka=kafka)
    assert settings.kafka.brokers == "k-1:9093,k-2:9093" and SECRET not in repr(settings)
    wanted = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sluice",
        "sasl.password": SECRET,
    }
    assert settings.kafka.options() == wanted
    resolved = resolve_connections(settings)
    monkeypatch.delenv("AIRFLOW_CONN_TOPICS")
    use_connections(resolved)
    assert settings.kafka.options() == wanted


def test_a_host_and_port_are_brokers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "topics", host="k-1", port=9092)
    settings = parsed(
        downstream={"type": "kafka"}, kafka={"connection": "topics", "savepoint": "/s"}
    )
    assert settings.kafka.brokers == "k-1:9092" and settings.kafka.options() == {}
