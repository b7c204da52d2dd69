"""Read the upstream's schema versions and collations from TiKV."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sluice.etl.landing._job import TableSpan
from sluice.tidb import read_schema_version
from sluice.tidb.tikv.collations import read_new_collations
from sluice.tidb.tikv.meta import find_table_info, read_schema_diff, string_key

if TYPE_CHECKING:
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


def newest_version(tikv: TiKVClient, spans: Iterable[TableSpan]) -> int:
    """Return the newest schema version by which the rows of `spans` may have been written.

    0 without rows.

    Rows name the version with which their transaction began. With metadata locks the transaction
    may have used a newer one, through that of its commit.
    """
    spans = tuple(spans)
    if not spans:
        return 0
    then = version_at(tikv, max(span.last_commit_ts for span in spans))
    return max(then, *(span.newest_version for span in spans))


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
