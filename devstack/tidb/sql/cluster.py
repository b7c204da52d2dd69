"""Define what the SQL port has to know of the cluster it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluice.devstack.tidb.sql.versions import Versions


@dataclass(frozen=True, slots=True)
class ClusterState:
    """`take_ts`: a fresh TSO of PD.

    `limit`: nothing that committed later ever happened, None without a limit. `gc_safe_point`: a
    TSO. `users`: passwords by name. `region_rows`: how many rows of a table make a region.
    """

    versions: Versions
    take_ts: Callable[[], int]
    limit: Callable[[], int | None] = lambda: None
    gc_safe_point: Callable[[], int] = lambda: 0
    users: Mapping[str, str] = field(default_factory=lambda: {"root": ""})
    region_rows: int = 1000
    settle: Callable[[int], None] = lambda ts: None
    """Returns once every transaction that may yet commit at or below a TSO has."""

    def visible(self, ts: int) -> int:
        """Up to where a reader at `ts` sees the recording."""
        limit = self.limit()
        return ts if limit is None else min(ts, limit)
