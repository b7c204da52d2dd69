"""Keep in TiKV the versions that landing may read: see `sluice.etl.landing.definitions_used`."""

from __future__ import annotations

import logging
import time

from sluice.errors import SluiceError
from sluice.tidb import PDClient

log = logging.getLogger("sluice.land")

_SAFE_POINT_TTL_S = 86_400
"""How long versions are kept when landing is down: a day, as TiCDC and the pumps do."""
_UPDATE_INTERVAL_S = 30.0
"""TiDB collects garbage every ten minutes; what is kept may lag behind by this."""


class LandingSafePoint:
    """A service safe point at PD that follows landing.

    It outlives its process by `_SAFE_POINT_TTL_S`.
    """

    def __init__(self, pd: PDClient, pipeline_id: str) -> None:
        """Create the landing safe point; `pipeline_id`: that of the registry.

        Of several pipelines on one relay log the landing one keeps versions.
        """
        self._pd, self._service = pd, f"sluice-land-{pipeline_id}"
        self._due = 0.0

    def update(self, landed_ts: int) -> None:
        """Keep the versions of `landed_ts` (TSO) and later; cheap to call often.

        Failures are only logged: landing needs PD for more than this, and reports it then.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _UPDATE_INTERVAL_S
        try:
            lowest = self._pd.update_service_gc_safe_point(
                self._service, _SAFE_POINT_TTL_S, landed_ts
            )
        except SluiceError as error:
            log.warning("TiKV may drop versions that landing needs: %s", error)
            return
        if lowest > landed_ts:
            log.info(
                "TiKV may have dropped versions: gc_safe_point=%d landed_ts=%d", lowest, landed_ts
            )
