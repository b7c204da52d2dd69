"""gRPC channels as every client here opens them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from sluice.errors import Signal

if TYPE_CHECKING:
    import ssl

# Binlogs have no size limit; pings find a peer that vanished without closing; a proxy named in the
# environment is meant for the web, never for a database's own nodes.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Every channel has its own connection, so closing one never cuts another's calls.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class TLS:
    """Paths of PEM files: the CA, and the client's certificate and key if the cluster needs them.

    Files that are replaced count from the next connection on.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def from_settings(cls, ssl_ca: str, ssl_cert: str = "", ssl_key: str = "") -> TLS | None:
        """Make it of `ssl-ca`, `ssl-cert` and `ssl-key`; None (no TLS) without a CA.

        OSError names a file that can't be read; ValueError if the three don't go together.
        """
        if bool(ssl_cert) != bool(ssl_key):
            raise ValueError("ssl-cert and ssl-key go together")
        if not ssl_ca:
            if ssl_cert:
                raise ValueError("ssl-cert and ssl-key need ssl-ca")
            return None
        for path in filter(None, (ssl_ca, ssl_cert, ssl_key)):
            Path(path).read_bytes()
        return cls(
            Path(ssl_ca), Path(ssl_cert) if ssl_cert else None, Path(ssl_key) if ssl_key else None
        )

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        OSError names the one that can't be read; ValueError if only one of cert and key is given.
        """
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS needs both a client certificate and its key, or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=Path(self.ca).read_bytes(),
            private_key=None if self.key is None else Path(self.key).read_bytes(),
            certificate_chain=None if self.cert is None else Path(self.cert).read_bytes(),
        )

    def context(self) -> ssl.SSLContext:
        """Make a context for HTTPS from the files. OSError names the one that can't be read."""
        import ssl

        context = ssl.create_default_context(cafile=str(self.ca))
        # Python 3.13 refuses certificates without the identifiers of RFC 5280, which TiDB, MySQL
        # and Python 3.12 take
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.cert is not None and self.key is not None:
            context.load_cert_chain(str(self.cert), str(self.key))
        return context

    def stamp(self) -> tuple[int, ...]:
        """Return the times of the files' last changes in ns. OSError names a file that is gone."""
        return tuple(
            path.stat().st_mtime_ns for path in (self.ca, self.cert, self.key) if path is not None
        )


def target(url: str) -> str:
    """Return `host:port` of a URL as PD, etcd or an operator writes it.

    It is `http://host:port/`, `https://…` or without scheme.
    """
    return url.split("://", 1)[-1].rstrip("/")


def open_channel(url: str, tls: TLS | None = None, keepalive_ms: int = 10_000) -> grpc.Channel:
    """Open a channel to `host:port` or a URL.

    With `tls`, or for an `https://` URL, over TLS.

    An `https://` URL without `tls` uses the system's CAs. While calls are under way the peer is
    pinged every `keepalive_ms`. Returns at once: calls fail if no server listens.
    """
    options = [*CHANNEL_OPTIONS, ("grpc.keepalive_time_ms", keepalive_ms)]
    if tls is not None:
        return grpc.secure_channel(target(url), tls.credentials(), options)
    if url.startswith("https://"):
        return grpc.secure_channel(target(url), grpc.ssl_channel_credentials(), options)
    return grpc.insecure_channel(target(url), options)


class ClosedError(Signal):
    """The client was closed before."""


class Channels:
    """A channel to each address, opened at its first use, and again after a change of certificates.

    The one before stays open until the next replacement, for the calls that are under way on it.
    Thread-safe.
    """

    def __init__(self, tls: TLS | None) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._open: dict[str, tuple[grpc.Channel, tuple[int, ...]]] = {}
        self._former: dict[str, grpc.Channel] = {}
        self._closed = False

    def get(self, url: str) -> grpc.Channel:
        """Return the channel to `url`, as for open_channel.

        ClosedError; OSError if the first finds no certificates.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            channel, stamp = self._open.get(url, (None, ()))
            now = stamp
            if self._tls is not None:
                try:
                    now = self._tls.stamp()
                except OSError:
                    if channel is None:
                        raise
            if channel is not None and now == stamp:
                return channel
            try:
                opened = open_channel(url, self._tls)
            except OSError:  # a replacement in the middle: the next call sees it whole
                if channel is None:
                    raise
                return channel
            if channel is not None:
                former = self._former.pop(url, None)
                if former is not None:
                    former.close()
                self._former[url] = channel
            self._open[url] = (opened, now)
            return opened

    def close(self) -> None:
        """Close all; calls under way fail."""
        with self._lock:
            self._closed = True
            channels = [channel for channel, _ in self._open.values()] + list(self._former.values())
            self._open.clear()
            self._former.clear()
        for channel in channels:
            channel.close()


def split_urls(urls: str | Sequence[str]) -> list[str]:
    """Return addresses from a list or a comma-separated text. Raises ValueError without any."""
    given = urls.split(",") if isinstance(urls, str) else urls
    found = [url.strip() for url in given if url.strip()]
    if not found:
        raise ValueError("no PD address given; expected something like http://127.0.0.1:2379")
    return found


def describe(error: grpc.RpcError) -> str:
    """Return one line about a failed call: status code and the server's words."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def status(error: BaseException) -> grpc.StatusCode | None:
    """Return the status code of a failed call, None for anything else."""
    return (
        error.code() if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call) else None
    )
