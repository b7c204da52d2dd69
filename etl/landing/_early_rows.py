"""Rows that a multi-schema change of TiDB lets in before its DDL binlog.

TiDB ends such a change in two transactions. The first makes the new columns public and takes a schema version. The
second, after every server knows that version, writes the binlog. Sessions write the new columns between the two, and
the binlog alone would have these rows read by the table as it was. So the DDL is landed right before the first of them;
its binlog is then no change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etl.explode import DdlRecord
from etl.landing._job import TableSpan
from upstream import TiKVError
from upstream.job import Job
from upstream.job_versions import ReadDiff
from upstream.schema import Table
from upstream.tikv.meta import read_table_info

if TYPE_CHECKING:
    from upstream import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

FirstRows = Callable[[int], Iterable[tuple[int, int]]]
"""From a table id: (schema version, first commit_ts) of the table's rows in a window, ascending commit_ts."""
NextJob = Callable[[Table, int, Sequence[DdlRecord]], Job]
"""From a table, a schema version (0: that of its last landed DDL) and the window's DDL: the table's next finished job
behind that version. It is waited for."""
Born = Callable[[int], tuple[Table, int, int] | None]
"""From the id of a table that the window's DDL makes: how it is made, by which schema version and commit_ts."""
_FLAGS = 1 | 32
"""NOT NULL and UNSIGNED: TiDB's other flags follow from indexes."""


class EarlyRows:
    """The multi-schema changes that are under way, by the tables that they change."""

    def __init__(self, pd: PDClient, tikv: TiKVClient, read_diff: ReadDiff) -> None:
        self._pd = pd
        self._tikv = tikv
        self._read_diff = read_diff
        self._versions: dict[int, list[int]] = {}
        """By table id: the schema versions of changes whose DDL isn't landed."""
        self._same: dict[int, int] = {}
        """By table id: the last schema version at which the columns were still those of before."""
        self.landed: set[int] = set()
        """Ids of jobs that were landed before their binlog, which is still to come."""

    def note(self, versions: Iterable[int], changed_at: Mapping[int, int]) -> None:
        """Look through new schema versions. `changed_at`: the version of each table's last DDL."""
        for version in versions:
            table_id = int((self._read_diff(version) or {}).get("table_id") or 0)
            if table_id and version > changed_at.get(table_id, 0):  # its type is that of a part of the statement
                self._versions.setdefault(table_id, []).append(version)

    def forget(self, changed_at: Mapping[int, int]) -> None:
        """Drop the changes whose DDL is landed."""
        for table_id, versions in list(self._versions.items()):
            left = [version for version in versions if version > changed_at.get(table_id, 0)]
            if left != versions:
                self._same.pop(table_id, None)
            self._versions[table_id] = left
            if not left:
                del self._versions[table_id]

    def in_order(  # noqa: PLR0913 the window's rows and DDL, and two ways to ask
        self,
        ddls: Sequence[DdlRecord],
        spans: Mapping[int, TableSpan],
        tables: Mapping[int, Table],
        first_rows: FirstRows,
        next_job: NextJob,
        born: Born,
    ) -> list[DdlRecord]:
        """Return the window's DDL with each multi-schema change right before the first row that knows it.

        `tables`: as of the window's beginning. Raises TiKVError, and what `next_job` and `born` raise.
        """
        found = list(ddls)
        for table_id, versions in self._versions.items():
            span, table = spans.get(table_id), tables.get(table_id)
            if span is None or span.newest_version < self._unseen(table_id, versions[0]):
                continue
            after = 0, 0
            if table is None:
                birth = born(table_id)
                if birth is None:
                    continue
                table, after = birth[0], birth[1:]
            self._order(found, table, self._rows(table_id, versions[0], span, first_rows), next_job, after)
        return sorted(found, key=lambda record: record.commit_ts)

    def _unseen(self, table_id: int, since: int) -> int:
        return max(since, self._same.get(table_id, 0) + 1)

    def _rows(self, table_id: int, since: int, span: TableSpan, first_rows: FirstRows) -> list[tuple[int, int]]:
        """Return (schema version, first commit_ts) of rows that may know other columns."""
        if span.oldest_version == span.newest_version:
            return [(span.newest_version, span.first_commit_ts)]
        return [row for row in first_rows(table_id) if row[0] >= self._unseen(table_id, since)]

    def _order(
        self,
        found: list[DdlRecord],
        table: Table,
        rows: Sequence[tuple[int, int]],
        next_job: NextJob,
        after: tuple[int, int],
    ) -> None:
        """Put DDL of one table where its rows need it. `found` is changed.

        `after`: schema version and commit_ts of the DDL that has left `table`, zeros if that was landed before.
        """
        state, (after_version, after_ts) = table, after
        while (first := self._first_by_others(table, state, rows, after_ts)) is not None:
            _, first_ts, is_sure = first
            job = next_job(table, after_version, found)
            if job.table_info is None:
                return
            record = next((record for record in found if record.job_id == job.id), None)
            left = Table.from_tidb(job.table_info, table.schema_id, table.schema_name)
            after_version = job.schema_version
            if record is not None and record.commit_ts < first_ts:
                state, after_ts = left, record.commit_ts
                continue
            if not is_sure:
                behind = [commit_ts for v, commit_ts in rows if v >= job.schema_version and commit_ts > after_ts]
                if not behind:
                    return
                first_ts = behind[0]
                if record is not None and record.commit_ts < first_ts:
                    state, after_ts = left, record.commit_ts
                    continue
                if not _columns_of(left) - _columns_of(state):
                    state = left  # its rows are read alike either way; DDL behind it may still be known early
                    continue
            if record is not None:
                found.remove(record)
            else:
                self.landed.add(job.id)
            state, after_ts = left, first_ts - 1
            found.append(DdlRecord(after_ts, job.start_ts, job.id, job.schema_state, job.query))
            log.info(
                "DDL job %d is landed at commit_ts %d, before its binlog: rows of %s know it",
                job.id, after_ts, table.full_name,
            )  # fmt: skip

    def _first_by_others(
        self, table: Table, state: Table, rows: Sequence[tuple[int, int]], after_ts: int
    ) -> tuple[int, int, bool] | None:
        """Return the first row behind `after_ts` by columns that `state` hasn't: version, commit_ts and True.

        The first row of which TiKV doesn't tell comes with False.
        """
        for version, commit_ts in rows:
            if commit_ts <= after_ts:
                continue
            try:
                info, is_sure = self._info(table, commit_ts), True
            except TiKVError as error:
                info, is_sure = self._info(table, self._pd.tso()), False  # TiKV is there: it has collected that moment
                log.debug("TiKV doesn't tell what %s was at commit_ts %d: %s", table.full_name, commit_ts, error)
            then = None if info is None else Table.from_tidb(info, table.schema_id, table.schema_name)
            if then is None and not is_sure:
                return version, commit_ts, False
            if then is not None and _columns_of(then) - _columns_of(state):
                return version, commit_ts, is_sure
            if state is table:
                self._same[table.id] = max(version, self._same.get(table.id, 0))
        return None

    def _info(self, table: Table, ts: int) -> Mapping[str, Any] | None:
        return read_table_info(self._tikv, table.schema_id, table.id, ts)


def _columns_of(table: Table) -> set[tuple[object, ...]]:
    """Return what tells rows of one definition from those of another."""
    return {(c.id, c.name, c.tp, c.flag & _FLAGS, c.flen, c.decimal, c.elems) for c in table.columns if c.public}
