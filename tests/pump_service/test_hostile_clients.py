"""All hostile clients of the benchmark side by side: an ordinary writer is served, /status answers,
memory stays where it is.
"""

from __future__ import annotations

import psutil
import pytest

from sluice.bench.hostile_clients import CLIENTS
from sluice.bench.hostile_clients_bench import beside, write_backlog
from tests.pump_service.pumpkit import CLUSTER, Site


@pytest.mark.slow
def test_beside_hostile_clients_a_writer_is_served_and_memory_stays_bounded(tmp_path):
    site = Site(tmp_path)
    try:
        pump = site.pump("pump")
        write_backlog(pump.address, CLUSTER, 50)
        process = psutil.Process(pump.process.pid)
        outcome = beside(pump.address, CLUSTER, process, sorted(CLIENTS), seconds=5, rate=50)
        assert pump.process.poll() is None, pump.text()
        assert (outcome.calls, outcome.failed) == (250, 0)
        assert outcome.rss_peak_mib < 400
        assert outcome.threads_peak < 250
        assert outcome.status_max_ms < 60_000  # it answered at all
        assert pump.terminate(60) == 0
    finally:
        site.close()
