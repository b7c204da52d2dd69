"""The upstream's clock: lag is measured by it, so that a wrong clock of this machine, or an upstream that lives in the
past as a recording does, shows no lag that isn't there.
"""

from __future__ import annotations

import time

from etl.overview.background import Background
from etl.settings import Settings, Upstream
from upstream import PDClient, PDError, tso

__all__ = ["upstream_ahead_ms"]

_FRESH_S = 10.0
_FIRST_S = 1.0
_TIMEOUT_S = 3.0

_asked: dict[str, Background[float]] = {}


def upstream_ahead_ms(settings: Settings) -> float:
    """How far PD's clock is ahead of this machine's, as of some seconds ago; 0 as long as PD hasn't told."""
    upstream = settings.upstream
    asked = _asked.setdefault(upstream.pd_urls, Background(lambda: _ahead_ms(upstream), _FRESH_S, _FIRST_S))
    try:
        return asked.newest() or 0.0
    except (PDError, OSError):
        return 0.0


def _ahead_ms(upstream: Upstream) -> float:
    with PDClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=_TIMEOUT_S) as pd:
        return float(tso.physical_ms(pd.tso()) - time.time_ns() // 1_000_000)
