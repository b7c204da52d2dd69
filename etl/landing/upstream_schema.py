"""Read the upstream's schema versions and collations from TiKV."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.tidb import TiKVError, read_schema_version
from sluice.tidb.tikv.meta import find_table_info, read_new_collations, read_schema_diff, string_key

if TYPE_CHECKING:
    from sluice.etl.landing._job import TableSpan
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

_MAX_CACHED_DIFFS = 4096


def version_at(tikv: TiKVClient, ts: int) -> int:
    """Return the schema version whose DDL was committed by `ts` (TSO); 0 before the first.

    TiDB takes a new version in a transaction of its own, just before the one that carries out the
    DDL and writes ``Diff:<version>``. Between the two the version is too high by one.
    """
    if ts == 0:
        return 0
    version = read_schema_version(tikv, ts)
    if version and tikv.get(string_key(f"Diff:{version}"), ts) is None:
        return version - 1
    return version


class PendingVersion(NamedTuple):
    """TiDB's schema version as of `ts` (TSO), which is being read."""

    ts: int
    result: Callable[[], int]
    """Wait for it. Raises TiKVError."""


class CommitVersions:
    """The newest schema version by which the rows of each window may have been written.

    Windows are asked for in their order. A window waits for TiKV only if DDL came since the last.
    """

    def __init__(self, tikv: TiKVClient) -> None:
        self._tikv = tikv
        self._known = 0, 0
        """A TSO and its `version_at`: those of the last window."""

    def newest(self, spans: Collection[TableSpan], pending: PendingVersion | None = None) -> int:
        """Return the version for a window with the rows of `spans`; 0 without rows.

        Rows name the version with which their transaction began. With metadata locks the
        transaction may have used a newer one, through that of its commit. `pending`: TiKV's
        SchemaVersionKey at or behind the last row, begun while the rows were read. Raises
        TiKVError.
        """
        if not spans:
            return 0
        then = self._version_at(max(span.last_commit_ts for span in spans), pending)
        return max(then, *(span.newest_version for span in spans))

    def _version_at(self, ts: int, pending: PendingVersion | None) -> int:
        # Versions only grow, and SchemaVersionKey is never below `version_at`. With a <= ts <= b:
        #     version_at(a) <= version_at(ts) <= version_at(b) <= SchemaVersionKey as of b.
        # If the first and the last are equal, all are. A read as of b may come before the window's
        # rows are read: b is at most a timestamp that PD gave before, and what commits behind such
        # a read gets a higher one.
        known_ts, known = self._known
        if pending is not None and known_ts <= ts <= pending.ts:
            with contextlib.suppress(TiKVError):  # as of `ts` there may be no lock in the way
                if pending.result() == known:
                    self._known = pending.ts, known
                    return known
        self._known = ts, version_at(self._tikv, ts)
        return self._known[1]


def has_new_collations(tikv: TiKVClient, ts: int, setting: str) -> bool:
    """Return whether the upstream compares text by its collations.

    It is by `setting` or as TiDB recorded at bootstrap. `ts`: a fresh TSO, since the schema that
    landing begins with may not have mysql.tidb yet. Raises TiKVError.
    """
    if setting != "auto":
        return setting == "true"
    table = find_table_info(tikv, "mysql", "tidb", ts)
    found = read_new_collations(tikv, int(table["id"]), ts) if table is not None else None
    if found is None:
        log.warning(
            "nothing in mysql.tidb shows whether the upstream has new collations; taking it"
            " as true; [upstream] new-collations sets it"
        )
    return found is not False


class SchemaDiffs:
    """The changes of schema versions, as TiKV has them.

    Those that exist are cached, for they never change.
    """

    def __init__(self, pd: PDClient, tikv: TiKVClient) -> None:
        self._pd = pd
        self._tikv = tikv
        self._cached: dict[int, dict[str, Any]] = {}

    def read(self, version: int) -> dict[str, Any] | None:
        """Return TiDB's diff of a schema version; None while there is none.

        Raises TiKVError, PDError.
        """
        if version not in self._cached:
            diff = read_schema_diff(self._tikv, version, self._pd.tso())
            if diff is None:
                return None
            if len(self._cached) >= _MAX_CACHED_DIFFS:
                self._cached.clear()
            self._cached[version] = diff
        return self._cached[version]
