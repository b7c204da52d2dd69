"""What PD says of the upstream: its clock, and which cluster it is.

Lag is measured by that clock, so that a wrong clock of this machine, or an upstream that lives in the past as a
recording does, shows no lag that isn't there.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from etl.overview.background import Background
from etl.settings import Settings, Upstream
from upstream import PDClient, PDError, tso

__all__ = ["upstream_ahead_ms", "upstream_cluster_id"]

_FRESH_S = 10.0
_FIRST_S = 1.0
_TIMEOUT_S = 3.0


class _Seen(NamedTuple):
    ahead_ms: float = 0.0
    cluster_id: int = 0


_asked: dict[str, Background[_Seen]] = {}


def upstream_ahead_ms(settings: Settings) -> float:
    """How far PD's clock is ahead of this machine's, as of some seconds ago; 0 as long as PD hasn't told."""
    return _seen(settings).ahead_ms


def upstream_cluster_id(settings: Settings) -> int:
    """Return the id of the upstream's cluster; 0 as long as PD hasn't answered."""
    return _seen(settings).cluster_id


def _seen(settings: Settings) -> _Seen:
    upstream = settings.upstream
    asked = _asked.setdefault(upstream.pd_urls, Background(lambda: _ask(upstream), _FRESH_S, _FIRST_S))
    try:
        return asked.newest() or _Seen()
    except (PDError, OSError):
        return _Seen()


def _ask(upstream: Upstream) -> _Seen:
    with PDClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=_TIMEOUT_S) as pd:
        ahead_ms = float(tso.physical_ms(pd.tso()) - time.time_ns() // 1_000_000)
        return _Seen(ahead_ms, pd.cluster_id)
