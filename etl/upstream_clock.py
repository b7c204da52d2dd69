"""Read the upstream's clock and cluster id from PD.

Lag is measured by that clock, and times ago count from it: a wrong clock of this machine, or an
upstream that lives in the past as a recording does, shows no lag that isn't there, and `2h` finds
what was committed two hours before the upstream's now.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from sluice.etl.cached_value import CachedValue
from sluice.etl.display_units import format_duration
from sluice.etl.settings import Settings, Upstream
from sluice.tidb import PDClient, PDError, tso
from sluice.tidb.moments import is_relative, parse_moment

__all__ = [
    "describe_skew",
    "differing_now",
    "upstream_cluster_id",
    "upstream_moment",
    "upstream_skew_ms",
]

_CACHE_TTL_S = 10.0
_FIRST_WAIT_S = 1.0
_PD_TIMEOUT_S = 3.0
MAX_EQUAL_SKEW_MS = 60_000
"""Clocks that differ by less are taken as one: people type minutes."""
_DAY_S = 86_400


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


def differing_now(settings: Settings) -> int | None:
    """Return the upstream's now (TSO); None if this machine's clock is the same, or PD is away."""
    ahead_ms = round(upstream_skew_ms(settings))
    if abs(ahead_ms) <= MAX_EQUAL_SKEW_MS:
        return None
    return tso.compose(max(0, tso.physical_ms(tso.wall_clock()) + ahead_ms))


def upstream_moment(settings: Settings, text: str) -> int:
    """Parse a moment as a person types it (TSO); what is relative counts from the upstream's now.

    Raises MomentError.
    """
    return parse_moment(text, differing_now(settings) if is_relative(text) else None)


def describe_skew(ahead_ms: float) -> str:
    """Return how far the upstream's clock is from this machine's: `6 d 22 h behind`."""
    seconds = round(abs(ahead_ms) / 1000)
    if seconds >= _DAY_S:
        text = f"{seconds // _DAY_S} d {seconds % _DAY_S // 3600} h"
    else:
        text = format_duration(seconds)
    return f"{text} {'ahead of' if ahead_ms > 0 else 'behind'}"


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
