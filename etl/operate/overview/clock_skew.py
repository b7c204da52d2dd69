"""Read the upstream's clock and cluster id from PD.

Lag is measured by that clock, so that a wrong clock of this machine, or an upstream that lives in
the past as a recording does, shows no lag that isn't there.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from sluice.etl.cached_value import CachedValue
from sluice.etl.settings import Settings, Upstream
from sluice.tidb import PDClient, PDError, tso

__all__ = ["upstream_cluster_id", "upstream_skew_ms"]

_CACHE_TTL_S = 10.0
_FIRST_WAIT_S = 1.0
_PD_TIMEOUT_S = 3.0


class _PdSample(NamedTuple):
    ahead_ms: float = 0.0
    cluster_id: int = 0


_samples: dict[str, CachedValue[_PdSample]] = {}


def upstream_skew_ms(settings: Settings) -> float:
    """Return how far PD's clock is ahead of this machine's, as of some seconds ago.

    0 until PD has answered.
    """
    return _latest_sample(settings).ahead_ms


def upstream_cluster_id(settings: Settings) -> int:
    """Return the id of the upstream's cluster; 0 as long as PD hasn't answered."""
    return _latest_sample(settings).cluster_id


def _latest_sample(settings: Settings) -> _PdSample:
    upstream = settings.upstream
    cached = _samples.setdefault(upstream.pd_urls, CachedValue())
    try:
        return (
            cached.latest(lambda: _query_pd(upstream), _CACHE_TTL_S, _FIRST_WAIT_S) or _PdSample()
        )
    except (PDError, OSError):
        return _PdSample()


def _query_pd(upstream: Upstream) -> _PdSample:
    with PDClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=_PD_TIMEOUT_S) as pd:
        ahead_ms = float(tso.physical_ms(pd.tso()) - time.time_ns() // 1_000_000)
        return _PdSample(ahead_ms, pd.cluster_id)
