"""TLS before a Spark Connect server, which has none: passes connections on to a local port.

The certificate is read from the files: one that is renewed counts from the next connection on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import RequestError
from sluice.etl.spark.launch import LaunchCommand

log = logging.getLogger("sluice.spark")

_LOOPBACK = "127.0.0.1"
_BLOCK_BYTES = 1 << 16


class CertificateError(RequestError):
    """A certificate, its key, or the authorities of clients' certificates can't be used."""

    hint = (
        "give PEM files that belong together: --tls-cert, --tls-key, and --tls-client-ca for"
        " clients' authorities"
    )


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files. With `client_ca` a client must show a certificate of one of its authorities."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context for handshakes, each with the files' content at its time.

        If that is unusable, with the content before. Raises CertificateError.
        """
        outer = now = self._load()
        seen = self._stamps()

        def renew(
            connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
        ) -> None:
            nonlocal now, seen
            try:
                if (stamps := self._stamps()) != seen:
                    now, seen = self._load(), stamps
                    log.info("the certificate %s has been read again", self.cert)
            except (
                OSError,
                CertificateError,
            ) as error:  # renewed in this moment: the next one sees it whole
                log.warning("cannot read the new certificate, serving the former one: %s", error)
            connection.context = now

        outer.sni_callback = renew
        return outer

    def _stamps(self) -> list[tuple[int, int]]:
        return [
            (found.st_mtime_ns, found.st_ino) for found in map(os.stat, filter(None, self._files()))
        ]

    def _files(self) -> tuple[Path | None, ...]:
        return self.cert, self.key, self.client_ca

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Python 3.13 refuses certificates without the identifiers of RFC 5280, which others take.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2"])
        try:
            context.load_cert_chain(self.cert, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            files = ", ".join(str(path) for path in filter(None, self._files()))
            raise CertificateError(f"{files}: {error.strerror or error}") from None
        return context


def serve(command: LaunchCommand, port: int, certificates: Certificates, inner_port: int) -> int:
    """Run a server that listens at `inner_port` of 127.0.0.1, with TLS before it at `port`.

    It runs until the server ends, which SIGTERM and SIGINT cause; returns the server's exit code.
    Raises CertificateError, OSError.
    """
    return asyncio.run(_serve(command, port, certificates.context(), inner_port))


async def _serve(
    command: LaunchCommand, port: int, context: ssl.SSLContext, inner_port: int
) -> int:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await splice(reader, writer, inner_port)

    front = await asyncio.start_server(pass_on, port=port, ssl=context)
    env = dict(os.environ) | dict(command.env)
    server = await asyncio.create_subprocess_exec(*command.argv, env=env, pass_fds=command.fds)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _forward_signal, server, number)
    code = await server.wait()
    front.close()
    return 128 - code if code < 0 else code


def _forward_signal(server: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.send_signal(number)


async def splice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Forward both ways between a connection and `port` of 127.0.0.1 until one ends."""
    try:
        inner_reader, inner_writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError:  # it is starting: the client tries again
        writer.close()
        return
    ways = [
        asyncio.create_task(_copy(reader, inner_writer)),
        asyncio.create_task(_copy(inner_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way, end in zip(ways, (inner_writer, writer)):
            way.cancel()
            end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_BLOCK_BYTES):
            writer.write(data)
            await writer.drain()
