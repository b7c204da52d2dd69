"""Lag is measured by the upstream's clock: a wrong clock here, or a recording, makes no lag that
isn't there.
"""

from __future__ import annotations

import time

from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.etl.upstream_clock import upstream_skew_ms
from tests.tidb.wire_cluster import Cluster

PATIENCE_S = 120.0


def settings(pd_urls: str) -> Settings:
    return Settings(Upstream(pd_urls), Relay("file:///nowhere"), Downstream(host="nowhere"))


def test_an_upstream_that_lives_in_the_past_is_behind_this_machines_clock_by_as_much() -> None:
    cluster = Cluster()
    try:
        began, until = time.time() * 1000, time.monotonic() + PATIENCE_S
        while not (ahead := upstream_skew_ms(settings(",".join(cluster.urls)))):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert cluster.physical - time.time() * 1000 <= ahead <= cluster.physical - began
    finally:
        cluster.stop()


def test_without_an_answer_of_pd_this_machines_clock_counts() -> None:
    assert upstream_skew_ms(settings("http://127.0.0.1:1")) == 0.0
