"""Find the pipeline's side of the pages: in this process, in a child process, or at an address."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from sluice.airflow.agent_client import AgentError, airflow_connection, call
from sluice.errors import SluiceError
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.pipelines import NamedPipeline

__all__ = ["Backend", "backend_of"]

log = logging.getLogger("sluice")

_CONNECTION_TTL_S = 60.0
"""A changed connection counts after this. A secrets backend isn't asked for every request."""
_START_TIMEOUT_S = 60.0
"""Imports of a child on a busy machine take seconds."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Where requests go. `forget`: call it when there was no answer."""

    name: str
    url: str
    transport: Callable[[], httpx.AsyncBaseTransport]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    forget: Callable[[], None] = lambda: None


def backend_of(pipeline: NamedPipeline) -> Backend:
    """Return the pipeline's; starts a child process. Not for the event loop. Raises SluiceError."""
    section = pipeline.airflow
    if section.pages:
        return _servers.get(section.pages)
    if section.python:
        path = _children.socket_of(pipeline)
        return Backend(
            f"the pages' process of {section.python}",
            "http://child",
            # no TLS here; `verify` would read all authorities' certificates, for each request
            lambda: httpx.AsyncHTTPTransport(uds=str(path), verify=False),
        )
    return Backend(
        "this process", "http://here", lambda: httpx.ASGITransport(_app_here(pipeline.path))
    )


@cache
def _app_here(path: Path | None) -> Any:
    try:
        from sluice.pages.app import create_app
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("sluice"):
            raise
        raise AgentError(
            f"this Airflow has no pipeline installed, and {path} names no server of the pages",
            hint='set pages = "sluice_pages", or python = "/opt/sluice/bin/python", in [airflow]',
        ) from None
    return create_app()


class _Servers:
    """Servers that Airflow connections name."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, Backend]] = {}

    def get(self, name: str) -> Backend:
        """Return the server of a connection. Raises SettingsError."""
        until, backend = self._found.get(name, (0.0, None))
        if backend is None or time.monotonic() >= until:
            backend = self._read(name)
            self._found[name] = time.monotonic() + _CONNECTION_TTL_S, backend
        return backend

    def _read(self, name: str) -> Backend:
        message = airflow_connection(name)
        if "error" in message:
            raise SettingsError(
                f"[airflow] pages: {message['error']}", transient=message["transient"]
            )
        it = message["fields"]
        if not it["host"] or not it["password"]:
            raise SettingsError(
                f"[airflow] pages: the connection {name} needs a host, and the token as password"
            )
        scheme = "https" if "https" in (it["schema"], it["conn_type"]) else "http"
        host = f"[{it['host']}]" if ":" in it["host"] else it["host"]
        url = f"{scheme}://{host}:{it['port'] or 8247}"
        verify = _tls(it["extra_dejson"].get("ca", "")) if scheme == "https" else False
        return Backend(
            f"the server of the pages {url}",
            url,
            lambda: httpx.AsyncHTTPTransport(verify=verify),
            {"authorization": f"Bearer {it['password']}"},
            lambda: self._found.pop(name, None) and None,
        )


@cache
def _tls(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise SettingsError(f"[airflow] pages: ca {ca}: {error}") from None


class _Children:
    """Processes in pipelines' environments, one an interpreter; they end with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, _Child] = {}

    def socket_of(self, pipeline: NamedPipeline) -> Path:
        """Return the socket at which the pipeline's process listens. Raises SluiceError."""
        with self._lock:
            child = self._found.get(pipeline.airflow.python)
            if child is None or not child.is_alive():
                child = self._found[pipeline.airflow.python] = _Child(pipeline)
        child.wait()
        return child.socket


class _Child(threading.Thread):
    """A call to an agent that serves the pages until the agent ends."""

    def __init__(self, pipeline: NamedPipeline) -> None:
        super().__init__(name="sluice-pages", daemon=True)
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-pages-"))  # for this user only
        self.socket = self._folder / "s"
        self._pipeline = pipeline
        self._error: SluiceError | None = None
        self.start()

    def run(self) -> None:
        """Serve until the agent is gone."""
        try:
            call(self._pipeline, "serve_pages", socket=str(self.socket))
        except SluiceError as error:
            log.error("the pages' process ended: %s", error)
            self._error = error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self) -> None:
        """Wait until it listens. Raises SluiceError."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._listens():
            if not self.is_alive() or time.monotonic() > deadline:
                raise self._error or AgentError(
                    f"the pages' process of {self._pipeline.airflow.python} doesn't listen"
                )
            time.sleep(0.05)

    def _listens(self) -> bool:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True


_servers = _Servers()
_children = _Children()
