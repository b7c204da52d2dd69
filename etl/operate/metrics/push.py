"""Push the metrics to a Pushgateway at an interval, as the original does with `metrics-addr`."""

from __future__ import annotations

import logging
import threading

from prometheus_client import pushadd_to_gateway

from sluice.etl.operate.metrics.collector import PipelineCollector

__all__ = ["MetricsPusher"]

log = logging.getLogger("sluice")

_JOB = "binlog"
"""The original's."""
_PUSH_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 10.0


class MetricsPusher:
    """Push until it is closed. A gateway's failure is logged once, and tried again."""

    def __init__(
        self, gatherer: PipelineCollector, address: str, instance: str, every_s: float
    ) -> None:
        """Push to the gateway at `address` (``host:port`` or a URL).

        `instance` labels this process's metrics.
        """
        self._gatherer = gatherer
        self._address = address
        self._instance = instance
        self._every_s = every_s
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop pushing."""
        self._stop.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            self._push()
            if self._stop.wait(self._every_s):
                return

    def _push(self) -> None:
        grouping = {"instance": self._instance}
        try:
            pushadd_to_gateway(
                self._address, _JOB, self._gatherer.registry, grouping, timeout=_PUSH_TIMEOUT_S
            )
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning(
                    "metrics can't be pushed to %s, which is tried again: %s", self._address, error
                )
            self._failed = True
