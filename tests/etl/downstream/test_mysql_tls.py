"""The downstream's session over TLS: what is checked, and what a refusal says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.settings import Downstream, SettingsError
from tests.etl.mariadb_fixture import MariaDBServer
from tests.pump_service.authority import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDBServer]:
    cert, key = authority.issue("mariadb", "mariadb")
    server = MariaDBServer(
        tmp_path_factory.mktemp("tls"),
        f"--ssl-ca={authority.path}",
        f"--ssl-cert={cert}",
        f"--ssl-key={key}",
    )
    server.start()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER known@'%' REQUIRE X509")
        cursor.execute("GRANT ALL ON *.* TO known@'%'")
    yield server
    server.kill()


def session(settings: Downstream) -> MySQLSession:
    session = MySQLSession(settings)
    session.connect()
    return session


def cipher(session: MySQLSession) -> str:
    value = str(session.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1])
    session.close()
    return value


def test_a_session_with_an_authority_is_encrypted(
    server: MariaDBServer, authority: Authority
) -> None:
    assert cipher(session(replace(server.downstream, ssl_ca=str(authority.path)))) != ""


def test_an_encrypted_session_that_another_thread_closes_ends_at_once(
    server: MariaDBServer, authority: Authority
) -> None:
    made = session(replace(server.downstream, ssl_ca=str(authority.path)))
    number = made.query("SELECT CONNECTION_ID()")[0][0]
    found: list[object] = []

    def wait() -> None:
        try:
            found.append(made.query("SELECT SLEEP(200)"))
        except DownstreamError as error:
            found.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    with server.connect() as connection, connection.cursor() as cursor:
        asked = (
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %s AND INFO LIKE"
            " 'SELECT SLEEP%%'"
        )
        until = time.monotonic() + 60
        while time.monotonic() < until and (cursor.execute(asked, (number,)), cursor.fetchone())[
            1
        ] != (1,):
            time.sleep(0.05)
        made.close()
    thread.join(60)
    assert isinstance(found[0], DownstreamError), "the answer isn't waited for"
    assert found[0].transient


def test_a_client_certificate_lets_in_who_needs_one(
    server: MariaDBServer, authority: Authority
) -> None:
    cert, key = authority.issue("sluice", "sluice")
    known = replace(server.downstream, user="known", ssl_ca=str(authority.path))
    with pytest.raises(DownstreamError, match="Access denied"):
        session(known)
    assert cipher(session(replace(known, ssl_cert=str(cert), ssl_key=str(key)))) != ""


def test_a_server_of_another_authority_is_refused_for_good(
    server: MariaDBServer, tmp_path: Path
) -> None:
    with pytest.raises(DownstreamError, match="ssl-ca") as caught:
        session(replace(server.downstream, ssl_ca=str(Authority(tmp_path).path)))
    assert not caught.value.transient


def test_a_certificate_for_another_host_is_refused_unless_that_is_not_checked(
    server: MariaDBServer, authority: Authority
) -> None:
    elsewhere = replace(
        server.downstream, host="localhost", ssl_ca=str(authority.path)
    )  # the certificate names 127.0.0.1
    with pytest.raises(DownstreamError, match="ssl-verify-identity"):
        session(elsewhere)
    assert cipher(session(replace(elsewhere, ssl_verify_identity=False))) != ""


def test_a_server_without_tls_is_refused_when_tls_is_asked_for(
    mariadb: MariaDBServer, authority: Authority
) -> None:
    with pytest.raises(DownstreamError, match=r"(?i)ssl") as caught:
        session(replace(mariadb.downstream, ssl_ca=str(authority.path)))
    assert not caught.value.transient


def test_files_that_are_missing_or_half_given_are_named(
    server: MariaDBServer, authority: Authority
) -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        session(replace(server.downstream, ssl_ca="/nowhere.pem"))
    with pytest.raises(SettingsError, match="both ssl-cert and ssl-key"):
        session(replace(server.downstream, ssl_ca=str(authority.path), ssl_cert="x"))
