"""`[security]`: the port speaks TLS to gRPC and HTTP alike, checks client certificates and their common names."""

import datetime
import ipaddress
import ssl
import time

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pumpkit import binlog, request
from rawhttp2 import RawClient

from pump_service.config import Security
from pump_service.front import Front
from pump_service.tls import server_context

_DAY = datetime.timedelta(days=1)


class _Authority:
    """A CA that writes certificates and keys as PEM files."""

    def __init__(self, folder):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self.path = self._write("ca.pem", self._certificate(self.name, self.key.public_key(), ca=True))

    def _certificate(self, name, public_key, *, ca=False):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            self.name, name, public_key, x509.random_serial_number(), now - _DAY, now + _DAY
        )
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return builder.add_extension(x509.SubjectAlternativeName([address]), False).sign(self.key, hashes.SHA256())

    def _write(self, name, certificate):
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, common_name, file):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = self._write(f"{file}.pem", self._certificate(name, key.public_key()))
        path = self.folder / f"{file}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, path


@pytest.fixture
def authority(tmp_path):
    return _Authority(tmp_path)


@pytest.fixture
def served(authority, tmp_path):
    from test_lane_limits import _Served

    from pump_service.http1 import Http1, Response
    from pump_service.lane import LaneLimits

    cert, key = authority.issue("pump", "pump")
    security = Security(str(authority.path), str(cert), str(key), ("TiDB",))

    async def page(_request):
        return Response(200, "text/plain", b"over TLS")

    served = _Served(tmp_path / "data", LaneLimits())
    front = Front("/nowhere", lambda: Http1(page), security)
    front.use(served.context)
    host, port = served.run(front.listen("127.0.0.1", 0, server_context(security)))
    served.run(front.serve())
    served.secure = f"{host}:{port}"
    yield served
    front.stop_accepting()
    served.loop.call_soon_threadsafe(front.close_all)
    served.close()


def _client(authority, common_name):
    cert, key = authority.issue(common_name, f"client-{common_name}")
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), key.read_bytes(), cert.read_bytes())
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(cert, key)
    return credentials, context


def _write(served, credentials):
    with grpc.secure_channel(served.secure, credentials) as channel:
        ts = time.time_ns() // 1_000_000 << 18
        return channel.unary_unary("/binlog.Pump/WriteBinlog")(request(binlog(2, ts, ts)), timeout=5)


def test_grpc_and_http_work_over_tls_for_an_allowed_common_name(served, authority):
    credentials, context = _client(authority, "TiDB")
    assert _write(served, credentials) == b""
    assert httpx.get(f"https://{served.secure}/status", verify=context).text == "over TLS"


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
        with httpx.Client(verify=context) as client, client.stream("GET", f"https://{served.secure}/") as answer:
            stream = answer.extensions["network_stream"]
            seen.append(x509.load_der_x509_certificate(stream.get_extra_info("ssl_object").getpeercert(True)))
        time.sleep(0.02)
        authority.issue("renewed", "pump")
    assert [one.subject.rfc4514_string() for one in seen] == ["CN=pump", "CN=renewed"]
