"""Serve the metrics over HTTP: `/metrics`, and `/` for people who look what this is."""

from __future__ import annotations

from http import HTTPStatus

from sluice.etl.http_endpoint import HttpAnswer, HttpEndpoint
from sluice.etl.operate.metrics.collector import PipelineCollector

__all__ = ["MetricsEndpoint"]

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsEndpoint(HttpEndpoint):
    """Listen once it is made; `close` ends it. Raises OSError if the address is taken."""

    def __init__(self, gatherer: PipelineCollector, host: str, port: int) -> None:
        """Create the metrics endpoint; `port`: 0 for any that is free."""

        def answer(path: str) -> HttpAnswer:
            if path == "/metrics":
                return HttpAnswer(HTTPStatus.OK, _TEXT, gatherer.text())
            if path == "/":
                return HttpAnswer(HTTPStatus.OK, _TEXT, b"Sluice's metrics are at /metrics\n")
            return HttpAnswer(HTTPStatus.NOT_FOUND, _TEXT, b"not here: /metrics\n")

        super().__init__("metrics-endpoint", answer, host, port)
