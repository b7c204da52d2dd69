"""Serve /healthz and /readyz of a service, for the probes of Kubernetes and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sluice.etl.http_endpoint import HttpAnswer, HttpEndpoint

__all__ = ["HealthEndpoint"]

_PROBES = {"/healthz": "alive", "/readyz": "ready"}
"""The field of the state that each answers with: 200 if it is true, else 503."""


class HealthEndpoint(HttpEndpoint):
    """Listen once it is made; `close` ends it. Raises OSError if the address is taken."""

    def __init__(self, state: Callable[[], dict[str, Any]], host: str, port: int) -> None:
        """Serve what `state` returns; `port`: 0 for any that is free."""

        def answer(path: str) -> HttpAnswer:
            found, probe = state(), _PROBES.get(path)
            status = HTTPStatus.NOT_FOUND
            if probe is not None:
                status = HTTPStatus.OK if found[probe] else HTTPStatus.SERVICE_UNAVAILABLE
            return HttpAnswer(status, "application/json", json.dumps(found).encode())

        super().__init__("health-endpoint", answer, host, port)
