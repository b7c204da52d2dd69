"""Hold TiDB's GC back while old rows are read: PD's service safe point, as TiCDC does it.

Dumpling does it, too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Self

from sluice.errors import SluiceError
from sluice.etl.copy.errors import CopyError
from sluice.tidb import PDClient

log = logging.getLogger("sluice.copy")

SAFE_POINT_TTL_S = 1800
"""The hold ends by itself so long after it was last renewed."""


class GcSafePoint:
    """Keep versions at `ts` (TSO) and later as long as it is open.

    They stay for its time to live longer unless it is released. `service`: the holder's name in
    PD's list.
    """

    def __init__(self, pd: PDClient, service: str, ts: int, ttl_s: int = SAFE_POINT_TTL_S) -> None:
        self._pd, self._service, self._ts, self._ttl_s = pd, service, ts, ttl_s
        self._ended = threading.Event()
        self._is_lost = False
        self._thread = threading.Thread(target=self._renew, name="gc hold", daemon=True)

    def __enter__(self) -> Self:
        """Set the safe point. Raises CopyError if the GC has passed the timestamp, PDError."""
        self._acquire()
        self.check()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def release(self) -> None:
        """Hold it no longer.

        Else the hold ends when its time to live is over, and a copy may go on until then.
        """
        self._end()
        with contextlib.suppress(SluiceError):  # its TTL ends it
            self._pd.update_service_gc_safe_point(self._service, 0, self._ts)

    def check(self) -> None:
        """Raise CopyError if the GC has passed the timestamp."""
        if self._is_lost:
            raise CopyError(
                f"TiDB's GC has dropped what was at {self._ts}, which was not held for a while:"
                " what is left to copy can't be read any more",
                hint="give this copy up (`sluice jobs cancel`), and start over",
            )

    def _end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _acquire(self) -> None:
        lowest = self._pd.update_service_gc_safe_point(self._service, self._ttl_s, self._ts)
        self._is_lost = lowest > self._ts or self._pd.get_gc_safe_point() > self._ts

    def _renew(self) -> None:
        while not self._ended.wait(self._ttl_s / 3):
            try:
                self._acquire()
            except SluiceError as error:
                log.warning(
                    "the hold on TiDB's GC could not be renewed, the next try comes soon: %s", error
                )
