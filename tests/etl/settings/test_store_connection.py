"""Credentials of an object store from an Airflow connection: where they come from, and where they
never appear.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyspark import cloudpickle

from sluice.etl.settings import SettingsError, parse_settings
from sluice.etl.settings import store_connection as module
from sluice.etl.settings.store_connection import credentials_of
from sluice.etl.spark.remote_workers import with_credentials
from sluice.relay import RelayLog
from sluice.relay.storage import credentials
from tests.object_store.s3_server import CREDENTIALS, S3Server

SECRET = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]


@dataclass
class Connection:
    conn_type: str
    login: str | None = None
    password: str | None = None
    host: str | None = None
    extra_dejson: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def nobody_knows_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_providers", {})
    monkeypatch.setattr(credentials, "_cached", {})


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (
            Connection(
                "aws",
                "AKIA",
                "hush",
                extra_dejson={"region_name": "eu-1", "endpoint_url": "http://s3:9000"},
            ),
            {
                "access_key_id": "AKIA",
                "secret_access_key": "hush",
                "region": "eu-1",
                "endpoint": "http://s3:9000",
            },
        ),
        (
            Connection(
                "aws",
                extra_dejson={
                    "aws_access_key_id": "A",
                    "aws_secret_access_key": "h",
                    "aws_session_token": "t",
                },
            ),
            {"access_key_id": "A", "secret_access_key": "h", "session_token": "t"},
        ),
        (
            Connection(
                "google_cloud_platform", extra_dejson={"keyfile_dict": {"type": "service_account"}}
            ),
            {"service_account_key": json.dumps({"type": "service_account"})},
        ),
        (
            Connection(
                "google_cloud_platform",
                extra_dejson={"extra__google_cloud_platform__key_path": "/key.json"},
            ),
            {"service_account": "/key.json"},
        ),
        (Connection("wasb", "account", "hush"), {"account_name": "account", "account_key": "hush"}),
        (
            Connection(
                "wasb",
                "client",
                "hush",
                "https://account.blob.core.windows.net/",
                {"tenant_id": "t"},
            ),
            {
                "account_name": "account",
                "tenant_id": "t",
                "client_id": "client",
                "client_secret": "hush",
            },
        ),
        (
            Connection(
                "wasb",
                extra_dejson={"connection_string": "AccountName=account;AccountKey=aHVzaA==;X=y"},
            ),
            {"account_name": "account", "account_key": "aHVzaA=="},
        ),
    ],
)
def test_a_connection_s_fields_become_the_store_s(
    connection: Connection, expected: dict[str, str]
) -> None:
    assert credentials_of(connection, "[relay] connection c").options == expected


@pytest.mark.parametrize(
    "connection",
    [
        Connection("mysql", "root", "hush"),
        Connection("aws"),
        Connection("google_cloud_platform", password="hush", extra_dejson={"key_secret_name": "s"}),
    ],
)
def test_a_connection_that_can_t_be_used_is_refused_without_its_secret(
    connection: Connection,
) -> None:
    with pytest.raises(SettingsError, match=r"\[relay\] connection c") as caught:
        credentials_of(connection, "[relay] connection c")
    assert "hush" not in str(caught.value)


@pytest.fixture
def url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A relay log whose credentials are in the connection `store`, and not in the environment."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    extra = {"endpoint_url": f"http://127.0.0.1:{s3_server.proxy.port}", "region_name": "us-east-1"}
    made = Connection("aws", CREDENTIALS["AWS_ACCESS_KEY_ID"], SECRET, extra_dejson=extra)
    asked = {"store": made}
    monkeypatch.setattr(module, "connection_of", lambda key, name: asked[name])
    return s3_server.plain_url()


def test_settings_name_the_connection_and_the_store_is_opened_with_it(
    url: str, s3_server: S3Server
) -> None:
    settings = parse_settings(
        {
            "upstream": {"pd-urls": "-"},
            "relay": {"url": url, "connection": "store"},
            "downstream": {"host": "d"},
        }
    )
    relay = RelayLog.open(settings.relay.url)
    relay.claim("land").check()
    assert s3_server.proxy.keys_seen
    assert SECRET not in repr(settings) + repr(vars(relay)) + repr(vars(relay.storage)) + repr(
        credentials.known_credentials()
    )


def _opened(batches: Iterator[str]) -> Iterator[str | None]:
    for url in batches:
        yield RelayLog.open(url).claimant("land")


def test_spark_s_workers_get_them_inside_of_the_function_and_not_as_plain_text(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_credentials(_opened) is _opened  # nobody gave any
    parse_settings(
        {
            "upstream": {"pd-urls": "-"},
            "relay": {"url": url, "connection": "store"},
            "downstream": {"host": "d"},
        }
    )
    RelayLog.open(url).claim("land")
    sent = cloudpickle.dumps(with_credentials(_opened))
    assert (
        SECRET.encode() not in sent
        and b"AKIA" not in sent
        and SECRET not in repr(with_credentials(_opened))
    )
    monkeypatch.setattr(credentials, "_providers", {})
    monkeypatch.setattr(credentials, "_cached", {})
    there = pickle.loads(sent)
    assert list(there(iter([url]))) == [""]


@pytest.mark.parametrize(
    ("url", "put_every", "expected_ms", "idle_ms"),
    [
        ("file:///relay", "", 0, 3_000),
        ("s3://bucket/relay", "", 1_000, 10_000),
        ("s3://bucket/relay", "0s", 0, 3_000),
        ("s3://bucket/relay", "500ms", 500, 5_000),
        ("file:///relay", "1m", 60_000, 600_000),
    ],
)
def test_how_often_a_window_is_put_depends_on_whether_puts_are_charged_for(
    url: str, put_every: str, expected_ms: int, idle_ms: int
) -> None:
    relay = {"url": url} | ({"put-every": put_every} if put_every else {})
    settings = parse_settings(
        {"upstream": {"pd-urls": "-"}, "relay": relay, "downstream": {"host": "d"}}
    )
    assert settings.relay.put_every_ms == expected_ms
    assert settings.landed_window.idle_interval_ms == idle_ms
    paced = replace(settings, window=replace(settings.window, cpu_percent=6))
    assert paced.landed_window.cpu_percent == (0 if expected_ms else 6)


def test_a_pause_without_its_unit_is_refused() -> None:
    relay = {"url": "s3://bucket/relay", "put-every": "1"}
    with pytest.raises(SettingsError, match=r"\[relay\] put-every"):
        parse_settings({"upstream": {"pd-urls": "-"}, "relay": relay, "downstream": {"host": "d"}})
