"""A Spark Connect server behind a proxy that speaks TLS, as servers of others are."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from etl.settings import Spark
from etl.spark.errors import SparkUnavailableError
from etl.spark.session import attach, close
from tests.pump_service.authority import Authority


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def tls_before(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """A port at which TLS is spoken in front of `port`."""
    loop = asyncio.new_event_loop()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

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


def test_a_server_is_asked_over_tls_with_client_certificate_and_token(spark_remote: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("spark", "spark")
    own_cert, own_key = authority.issue("sluice", "sluice")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the certificates are as simple as many are: no key identifiers
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(cert, key)
    (tmp_path / "token").write_text("shown to whoever wants it\n")
    with tls_before(int(spark_remote.rpartition(":")[2]), context) as port:
        server = Spark(
            f"sc://127.0.0.1:{port}", ssl_ca=str(authority.path), ssl_cert=str(own_cert), ssl_key=str(own_key),
            token_file=str(tmp_path / "token"),
        )  # fmt: skip
        spark = attach(server, "over TLS", timeout_s=120)
        assert spark.range(2).count() == 2
        close(spark)
        with pytest.raises(SparkUnavailableError, match="doesn't answer"):
            attach(replace(server, ssl_ca="", ssl_cert="", ssl_key="", ssl=True), "over TLS", timeout_s=0.1)
