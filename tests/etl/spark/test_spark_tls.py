"""A Spark Connect server with TLS before it, as `sluice spark connect` starts it, and as servers of
others are.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.settings import Spark
from sluice.etl.spark.errors import SparkUnavailableError
from sluice.etl.spark.session import attach, close
from sluice.etl.spark.tls_proxy import CertificateError, Certificates, splice
from tests.pump_service.authority import Authority


@contextlib.contextmanager
def tls_before(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """A port at which TLS is spoken in front of `port`."""
    loop = asyncio.new_event_loop()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await splice(reader, writer, port)

    server = loop.run_until_complete(asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


@pytest.mark.slow
def test_a_server_is_asked_over_tls_with_client_certificate_and_token(
    spark_remote: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("spark", "spark")
    own_cert, own_key = authority.issue("sluice", "sluice")
    context = Certificates(cert, key, authority.path).context()
    (tmp_path / "token").write_text("shown to whoever wants it\n")
    with tls_before(int(spark_remote.rpartition(":")[2]), context) as port:
        server = Spark(
            f"sc://127.0.0.1:{port}",
            ssl_ca=str(authority.path),
            ssl_cert=str(own_cert),
            ssl_key=str(own_key),
            token_file=str(tmp_path / "token"),
        )
        spark = attach(server, "over TLS", timeout_s=120)
        assert spark.range(2).count() == 2
        close(spark)
        with pytest.raises(SparkUnavailableError, match="doesn't answer"):
            attach(
                replace(server, ssl_ca="", ssl_cert="", ssl_key="", ssl=True),
                "over TLS",
                timeout_s=0.1,
            )


def shown(port: int, authority: Authority) -> int:
    """The serial number of the certificate that is shown at a port."""
    context = ssl.create_default_context(cafile=str(authority.path))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
        context.wrap_socket(connection, server_hostname="127.0.0.1") as spoken,
    ):
        found = spoken.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def test_a_renewed_certificate_is_shown_from_the_next_connection_on_and_half_a_one_never(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("spark", "spark")
    # nobody listens there: TLS is spoken all the same
    with tls_before(1, Certificates(cert, key).context()) as port:
        first = shown(port, authority)
        before = cert.read_bytes(), key.read_bytes()
        authority.issue("spark", "spark")
        renewed, new_key = cert.read_bytes(), key.read_bytes()
        key.write_bytes(before[1])
        assert shown(port, authority) == first, "the new key isn't there yet"
        key.write_bytes(new_key)
        assert shown(port, authority) != first
    cert.write_bytes(before[0])
    with pytest.raises(CertificateError, match=r"spark\.pem, .*spark\.key: .*MISMATCH"):
        Certificates(cert, key).context()
    cert.write_bytes(renewed)
    Certificates(cert, key).context()
