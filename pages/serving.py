"""Serve the pages' JSON: at a socket for the parent process, or at an address with a token."""

from __future__ import annotations

import uvicorn

from sluice.pages.app import create_app

__all__ = ["serve", "serve_on_socket"]

_END_TIMEOUT_S = 10
"""Requests under way may take this long after a request to end."""


def serve_on_socket(path: str) -> None:
    """Serve at a Unix socket in a folder that only this user may enter, until interrupted."""
    _run(uvicorn.Config(create_app(), uds=path, log_config=None))


def serve(host: str, port: int, token: str, certificate: str = "", key: str = "") -> None:
    """Serve at an address until interrupted; with TLS if there is a certificate."""
    config = uvicorn.Config(
        create_app(token),
        host=host,
        port=port,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
        log_config=None,
    )
    _run(config)


def _run(config: uvicorn.Config) -> None:
    config.access_log = False  # paths have what people search for
    config.timeout_graceful_shutdown = _END_TIMEOUT_S
    uvicorn.Server(config).run()
