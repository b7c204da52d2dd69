"""Credentials of S3 from named profiles, assumed roles and web identities, by a real STS: where
they come from, that others are used again when they end, and that none of them is said anywhere.
"""

from __future__ import annotations

import logging
import pickle
import ssl
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from sluice.etl.settings import SettingsError
from sluice.etl.settings.store_connection import credentials_of
from sluice.etl.spark.remote_workers import with_credentials
from sluice.relay import RelayLog
from sluice.relay.errors import RelayError
from sluice.relay.storage import credentials
from sluice.relay.storage._object_store import open_object_storage
from sluice.relay.url import parse_url
from tests.etl.settings.test_store_connection import Connection
from tests.object_store.proxy import FaultyProxy
from tests.object_store.s3_server import CREDENTIALS, S3Server, StoreProcess
from tests.pump_service.authority import Authority

KEY, SECRET = CREDENTIALS.values()
ROLE = "arn:aws:iam::000000000000:role/replication"
TOKEN = "token-of-a-service-account"


@pytest.fixture(autouse=True)
def no_other_credentials(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    monkeypatch.setattr(credentials, "_providers", {})
    monkeypatch.setattr(credentials, "_cached", {})
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{s3_server.proxy.port}")


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "credentials").write_text(f"[base]\n{keys}")
    (tmp_path / "config").write_text(
        f"[profile replica]\nrole_arn = {ROLE}\nsource_profile = base\nregion = us-east-1\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def claimed(server: S3Server) -> RelayLog:
    """A relay log in the store, after a request of each kind."""
    relay = RelayLog.open(server.url())
    relay.claim("land").check()
    return relay


def temporary(server: S3Server) -> list[str]:
    """The keys that STS gave and the store was then asked with."""
    return [key for key in server.proxy.keys_seen if key != KEY]


def provide(server: S3Server, **extra: Any) -> None:
    made = Connection("aws", extra.pop("login", None), extra.pop("password", None), None, extra)
    credentials.register_provider(server.url(), lambda: credentials_of(made, "[relay] connection"))


@pytest.mark.parametrize(("profile", "assumed"), [("base", 0), ("replica", 1)])
def test_a_profile_of_the_environment_opens_the_store(
    s3_server: S3Server,
    profiles: None,
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    assumed: int,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    claimed(s3_server)
    assert KEY in s3_server.proxy.keys_seen and len(temporary(s3_server)) == assumed


def test_keys_in_the_environment_count_before_its_profile(
    s3_server: S3Server, profiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "replica")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    claimed(s3_server)
    assert s3_server.proxy.keys_seen == ["AKIAOTHER"]


def test_a_web_identity_of_the_environment_opens_the_store(
    s3_server: S3Server,
    s3_process: StoreProcess,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("sts", "sts"))
    sts = FaultyProxy(s3_process.port, context)  # obstore sends a token by TLS alone
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"https://127.0.0.1:{sts.port}")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token_file))
    claimed(s3_server)
    assert len(temporary(s3_server)) == 1 and KEY not in s3_server.proxy.keys_seen
    sts.close()


@pytest.mark.parametrize(
    "extra",
    [
        {"profile_name": "replica"},
        {"profile_name": "base", "role_arn": ROLE},
        {"login": KEY, "password": SECRET, "role_arn": ROLE},
        {
            "role_arn": ROLE,
            "assume_role_method": "assume_role_with_web_identity",
            "assume_role_with_web_identity_federation": "file",
        },
    ],
    ids=["profile with a role", "role of a profile", "role of a key", "web identity"],
)
def test_a_connection_s_profile_or_role_counts_before_the_environment(
    s3_server: S3Server,
    profiles: None,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extra: dict[str, str],
) -> None:
    caplog.set_level(logging.DEBUG, "sluice")
    if "assume_role_method" in extra:
        extra = extra | {"assume_role_with_web_identity_token_file": str(token_file)}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "OTHER")
    provide(s3_server, region_name="us-east-1", **extra)
    relay = claimed(s3_server)
    assert len(temporary(s3_server)) == 1 and "OTHER" not in s3_server.proxy.keys_seen
    said = f"{caplog.text} {vars(relay.storage)!r} {credentials.known_credentials()!r}"
    assert all(secret not in said for secret in (SECRET, KEY, TOKEN))


def test_what_the_connection_says_of_the_role_reaches_sts(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    of_key: dict[str, Any] = {"login": KEY, "password": SECRET, "region_name": "us-east-1"}
    sts = {"endpoint_url": f"http://127.0.0.1:{s3_server.proxy.port}"}
    role = of_key | {"role_arn": ROLE, "service_config": {"sts": sts}}
    provide(s3_server, **role, assume_role_kwargs={"ExternalId": "42"})
    claimed(s3_server)
    provide(s3_server, **role, assume_role_kwargs={"External": "42"})
    with pytest.raises(PermissionError, match=r'Unknown parameter.*"External".*the role') as caught:
        claimed(s3_server)
    assert SECRET not in str(caught.value)
    provide(s3_server, **role | {"role_arn": "arn:aws:iam::nobody:of-the-kind"})
    with pytest.raises(PermissionError, match=r"AssumeRole.*the role"):
        claimed(s3_server)


def _opened(urls: Iterator[str]) -> Iterator[str | None]:
    for url in urls:
        yield RelayLog.open(url).claimant("land")


def test_spark_s_workers_assume_the_role_themselves_and_are_sent_no_plain_secret(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(s3_server, login=KEY, password=SECRET, role_arn=ROLE)
    claimed(s3_server)
    sent = cloudpickle.dumps(with_credentials(_opened))
    assert all(text.encode() not in sent for text in (SECRET, KEY, ROLE))
    monkeypatch.setattr(credentials, "_providers", {})
    monkeypatch.setattr(credentials, "_cached", {})
    there = pickle.loads(sent)
    assert list(there(iter([s3_server.url()]))) == [""]


def test_a_role_is_assumed_again_before_its_credentials_end(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import botocore.client

    made = botocore.client.BaseClient._make_api_call

    def short(self: Any, operation: str, parameters: Any) -> Any:
        answer = made(self, operation, parameters)
        answer["Credentials"]["Expiration"] = datetime.now(UTC) + timedelta(minutes=1)
        return answer

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", short)
    provide(s3_server, login=KEY, password=SECRET, role_arn=ROLE)
    found = credentials.credentials_for(s3_server.url())
    relay = RelayLog(open_object_storage(parse_url(s3_server.url()), s3_server.url(), found))
    claim = relay.claim("land")
    until = time.monotonic() + 60
    while len(temporary(s3_server)) < 2:
        assert time.monotonic() < until
        claim.check()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"profile_name": "missing"}, r"AWS session.*missing"),
        (
            {
                "role_arn": ROLE,
                "assume_role_method": "assume_role_with_web_identity",
                "assume_role_with_web_identity_federation": "file",
                "assume_role_with_web_identity_token_file": "/not/there",
            },
            r"/not/there",
        ),
    ],
)
def test_what_is_missing_is_named(s3_server: S3Server, extra: dict[str, str], message: str) -> None:
    provide(s3_server, region_name="us-east-1", **extra)
    with pytest.raises((RelayError, OSError), match=message):
        claimed(s3_server)


def test_without_boto3_the_error_says_what_to_install(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    provide(s3_server, profile_name="base")
    with pytest.raises(RelayError, match="boto3") as caught:
        claimed(s3_server)
    assert "sluice[aws]" in caught.value.hint


@pytest.mark.parametrize(
    "extra",
    [
        {"assume_role_method": "assume_role_with_saml"},
        {
            "assume_role_method": "assume_role_with_web_identity",
            "assume_role_with_web_identity_federation": "google",
        },
        {
            "assume_role_method": "assume_role_with_web_identity",
            "assume_role_with_web_identity_federation": "file",
        },
    ],
)
def test_a_way_to_assume_a_role_that_isn_t_known_is_refused(extra: dict[str, str]) -> None:
    connection = Connection("aws", extra_dejson={"role_arn": ROLE} | extra)
    with pytest.raises(SettingsError, match=r"\[relay\] connection c"):
        credentials_of(connection, "[relay] connection c")
