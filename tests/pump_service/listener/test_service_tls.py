"""`[security]`: the port speaks TLS to gRPC and HTTP alike, checks client certificates and their
common names.
"""

import contextlib
import socket
import ssl
import time

import grpc
import httpx
import pytest
from cryptography import x509

from sluice.pump_service.config import ROLES, Security
from sluice.pump_service.grpc_fastpath import FastPathLimits
from sluice.pump_service.grpc_fastpath.places import ACCEPTED_CONNECTION_BYTES, TLS_CONNECTION_BYTES
from sluice.pump_service.http import Http1Connection, HttpResponse
from sluice.pump_service.listener import Listener, server_context
from tests.pump_service.authority import Authority
from tests.pump_service.pumpkit import binlog, request
from tests.pump_service.rawhttp2 import RawClient
from tests.pump_service.served_lane import ServedLane


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def served(authority, tmp_path):
    cert, key = authority.issue("pump", "pump")
    security = Security(str(authority.path), str(cert), str(key), ("TiDB",))

    async def page(_request):
        return HttpResponse(200, "text/plain", b"over TLS")

    served = ServedLane(tmp_path / "data", FastPathLimits())
    front = Listener(lambda roles: Http1Connection(page, roles), security)
    front.use(served.context)
    host, port = served.run(front.listen("127.0.0.1", 0, server_context(security)))
    served.run(front.serve())
    served.secure = f"{host}:{port}"
    served.front_of_tls = front
    yield served
    front.stop_accepting()
    served.loop.call_soon_threadsafe(front.close_all)
    served.close()


def _client(authority, common_name):
    cert, key = authority.issue(common_name, f"client-{common_name}")
    credentials = grpc.ssl_channel_credentials(
        authority.path.read_bytes(), key.read_bytes(), cert.read_bytes()
    )
    context = ssl.create_default_context(cafile=str(authority.path))
    # the certificates are as simple as many are: no key identifiers
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(cert, key)
    return credentials, context


def _write(served, credentials):
    with grpc.secure_channel(served.secure, credentials) as channel:
        ts = time.time_ns() // 1_000_000 << 18
        return channel.unary_unary("/binlog.Pump/WriteBinlog")(request(binlog(2, ts)), timeout=60)


def test_grpc_and_http_work_over_tls_for_an_allowed_common_name(served, authority):
    credentials, context = _client(authority, "TiDB")
    assert _write(served, credentials) == b""
    assert httpx.get(f"https://{served.secure}/status", verify=context).text == "over TLS"


def test_before_its_first_byte_a_connection_takes_no_more_than_is_counted_for_it(served, authority):
    host, port = served.secure.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 60):
        until = time.monotonic() + 60
        while served.context.places.size < ACCEPTED_CONNECTION_BYTES + TLS_CONNECTION_BYTES:
            assert time.monotonic() < until
            time.sleep(0.01)
    credentials, _ = _client(authority, "TiDB")
    with grpc.secure_channel(served.secure, credentials) as channel:
        grpc.channel_ready_future(channel).result(60)
        buffers = [
            transport._ssl_protocol._ssl_buffer for transport in served.front_of_tls.connections
        ]
        assert buffers and all(len(buffer) <= TLS_CONNECTION_BYTES // 2 for buffer in buffers)


def test_a_connection_is_known_by_its_address_after_it_was_lost(served, authority):
    credentials, _ = _client(authority, "TiDB")
    before = set(served.context.lanes)
    with grpc.secure_channel(served.secure, credentials) as channel:
        channel.unary_unary("/binlog.Pump/WriteBinlog")(request(b""), timeout=60)
        (lane,) = served.context.lanes - before
        address = lane.peer
    until = time.monotonic() + 60
    while lane in served.context.lanes:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert lane.peer == address
    assert address.startswith("127.0.0.1:")


def test_another_common_name_is_refused(served, authority):
    credentials, context = _client(authority, "somebody")
    with pytest.raises(grpc.RpcError):
        _write(served, credentials)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://{served.secure}/status", verify=context)


def test_a_client_without_certificate_or_without_tls_is_refused(served, authority):
    with pytest.raises(grpc.RpcError):
        _write(served, grpc.ssl_channel_credentials(authority.path.read_bytes()))
    plain = RawClient(served.secure)
    plain.wait_closed()
    plain.close()
    assert served.client.closed is False


def test_new_certificates_count_from_the_next_connection_on(served, authority):
    _, context = _client(authority, "TiDB")
    seen = []
    for _ in range(2):
        with (
            httpx.Client(verify=context) as client,
            client.stream("GET", f"https://{served.secure}/") as answer,
        ):
            stream = answer.extensions["network_stream"]
            seen.append(
                x509.load_der_x509_certificate(
                    stream.get_extra_info("ssl_object").getpeercert(True)
                )
            )
        time.sleep(0.02)
        authority.issue("renewed", "pump")
    assert [one.subject.rfc4514_string() for one in seen] == ["CN=pump", "CN=renewed"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_does_not_outlive_the_authority_that_its_client_was_checked_by(
    served, authority, tmp_path, version
):
    _, context = _client(authority, "TiDB")
    context.minimum_version = context.maximum_version = version
    host, port = served.secure.rsplit(":", 1)

    def ask(session):
        with socket.create_connection((host, int(port)), 60) as plain:
            sock = context.wrap_socket(plain, server_hostname="127.0.0.1", session=session)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return sock.recv(65536), sock.session

    answer, session = ask(None)
    assert answer.startswith(b"HTTP/1.1 200")
    (tmp_path / "other").mkdir()
    authority.path.write_bytes(Authority(tmp_path / "other").path.read_bytes())
    for _ in range(2):
        answer = b""
        with contextlib.suppress(OSError):  # or it is only closed
            answer, _ = ask(session)
        assert answer == b""


def _rights_of(roles, name):
    return Security(
        cert_allowed_cn=("TiDB",), **{f"{role}_allowed_cn": (cn,) for role, cn in roles.items()}
    ).roles_of([name])


def test_a_role_with_names_of_its_own_is_for_those_only():
    assert _rights_of({}, "TiDB") == ROLES
    assert _rights_of({}, "other") == frozenset()
    assert _rights_of({"scrape": "prometheus", "operate": "admin"}, "TiDB") == {"write", "read"}
    assert _rights_of({"scrape": "prometheus", "operate": "admin"}, "prometheus") == {"scrape"}
    assert Security().roles_of([]) == ROLES


@pytest.fixture
def divided(authority, tmp_path):
    """A front where each role has its own name, and a page that shows what its client may do."""
    cert, key = authority.issue("pump", "pump")
    names = {f"{role}_allowed_cn": (role,) for role in ROLES}

    async def page(asked):
        return HttpResponse(200, "text/plain", " ".join(sorted(asked.roles)).encode())

    served = ServedLane(tmp_path / "data", FastPathLimits())
    front = Listener(
        lambda roles: Http1Connection(page, roles),
        Security(str(authority.path), str(cert), str(key), **names),
    )
    front.use(served.context)
    host, port = served.run(front.listen("127.0.0.1", 0, server_context(front.security)))
    served.run(front.serve())
    served.secure = f"{host}:{port}"
    yield served
    front.stop_accepting()
    served.loop.call_soon_threadsafe(front.close_all)
    served.close()


def test_a_certificate_does_what_its_role_may_and_no_more(divided, authority):
    for name in sorted(ROLES):
        credentials, context = _client(authority, name)
        assert httpx.get(f"https://{divided.secure}/status", verify=context).text == name
        with grpc.secure_channel(divided.secure, credentials) as channel:
            for path, role in (
                ("/binlog.Pump/WriteBinlog", "write"),
                ("/binlog.Pump/PullBinlogs", "read"),
            ):
                if name == "read" == role:
                    continue  # there is nothing behind this lane that answers it
                try:
                    channel.unary_unary(path)(request(b""), timeout=60)
                    refused = False
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.PERMISSION_DENIED, error
                    assert f"{role}-allowed-cn" in error.details()
                    refused = True
                assert refused == (name != role)
