"""Rows that a multi-schema change of TiDB lets in before its DDL binlog.

TiDB ends such a change in two transactions. The first makes the new columns public and takes a
schema version. The second, after every server knows that version, writes the binlog. Sessions write
the new columns between the two, and the binlog alone would have these rows read by the table as it
was. So the DDL is landed right before the first of them; its binlog is then no change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sluice.etl.landing._ddl_jobs import FinishedTableChange
from sluice.etl.landing._job import TableSpan
from sluice.etl.landing._window_rows import WindowRows
from sluice.etl.landing.extract import DdlRecord
from sluice.tidb import TiKVError
from sluice.tidb.ddl_schema_versions import ReadDiff
from sluice.tidb.job import DdlHistoryJob, HistoryError
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import read_table_info

if TYPE_CHECKING:
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.land")


class NextChange(Protocol):
    """Find the next finished job that changes a table."""

    def __call__(
        self, table: Table, after_version: int, *, comes: bool
    ) -> FinishedTableChange | None:
        """Return the first behind a schema version (0: that of the table's last landed DDL).

        None if there is none.

        `comes`: TiKV has shown that there is one, so it is waited for.
        """


TableBirth = Callable[[int], tuple[Table, int, int] | None]
"""Returns how a table that the window's DDL makes is made, by its id.

With it come the schema version and the commit_ts.
"""


class _EarlyRow(NamedTuple):
    """A row that may know columns which the binlogs before it don't."""

    commit_ts: int
    is_sure: bool
    """True if TiKV still had what the table was then."""
    comes: bool
    """True if a job that makes these columns is, or will be, in TiDB's history."""


_FLAGS = 1 | 32
"""NOT NULL and UNSIGNED: TiDB's other flags follow from indexes."""


class EarlyRows:
    """The multi-schema changes that are under way, by the tables that they change."""

    def __init__(self, pd: PDClient, tikv: TiKVClient, read_diff: ReadDiff) -> None:
        self._pd = pd
        self._tikv = tikv
        self._read_diff = read_diff
        self._versions: dict[int, list[int]] = {}
        """Schema versions of changes whose DDL isn't landed, by table id."""
        self._same: dict[int, int] = {}
        """The last schema version at which the columns were unchanged, by table id."""
        self.landed: set[int] = set()
        """Ids of jobs that were landed before their binlog, which is still to come."""

    def add_versions(self, versions: Iterable[int], changed_at: Mapping[int, int]) -> None:
        """Look through new schema versions. `changed_at`: the version of each table's last DDL."""
        for version in versions:
            table_id = int((self._read_diff(version) or {}).get("table_id") or 0)
            # its type is that of a part of the statement
            if table_id and version > changed_at.get(table_id, 0):
                self._versions.setdefault(table_id, []).append(version)

    def drop_landed(self, changed_at: Mapping[int, int]) -> None:
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
        rows: WindowRows,
        next_change: NextChange,
        born: TableBirth,
    ) -> list[DdlRecord]:
        """Return the window's DDL with each multi-schema change before the first row that knows it.

        It stands right before that row. `tables`: as of the window's beginning. Raises TiKVError,
        HistoryError, and what `next_change` and `born` raise.
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
            firsts = self._firsts(table_id, versions[0], span, rows)
            self._order(found, table, firsts, rows, next_change, after)
        return sorted(found, key=lambda record: record.commit_ts)

    def _unseen(self, table_id: int, since: int) -> int:
        return max(since, self._same.get(table_id, 0) + 1)

    def _firsts(
        self, table_id: int, since: int, span: TableSpan, rows: WindowRows
    ) -> list[tuple[int, int]]:
        """Return (schema version, first commit_ts) of rows that may know other columns."""
        if span.oldest_version == span.newest_version:
            return [(span.newest_version, span.first_commit_ts)]
        return [
            row
            for row in rows.first_by_version(table_id)
            if row[0] >= self._unseen(table_id, since)
        ]

    def _order(  # noqa: PLR0913 one table's part of `in_order`
        self,
        found: list[DdlRecord],
        table: Table,
        firsts: Sequence[tuple[int, int]],
        rows: WindowRows,
        next_change: NextChange,
        after: tuple[int, int],
    ) -> None:
        """Put DDL of one table where its rows need it.

        `found` is changed.

        `after`: schema version and commit_ts of the DDL that has left `table`, zeros if that was
        landed before.
        """
        state, (after_version, after_ts) = table, after
        while (early := self._first_by_others(table, state, firsts, after_ts)) is not None:
            first_ts = early.commit_ts
            change = next_change(table, after_version, comes=early.comes)
            if change is None or change.left is None:
                return
            job, left = change.job, change.left
            # a dropped column has two: the last counts
            own = [record for record in found if record.job_id == job.id]
            record = max(own, key=lambda record: record.commit_ts, default=None)
            after_version = job.schema_version
            if record is not None and record.commit_ts < first_ts:
                state, after_ts = left, record.commit_ts
                continue
            if not early.is_sure:
                behind = [
                    commit_ts
                    for v, commit_ts in firsts
                    if v >= job.schema_version and commit_ts > after_ts
                ]
                if not behind:
                    return
                first_ts = behind[0]
                if record is not None and record.commit_ts < first_ts:
                    state, after_ts = left, record.commit_ts
                    continue
            if not _columns_of(left) - _columns_of(state):
                # its rows are read alike either way; DDL behind it may still be known early
                state = left
                continue
            if record is not None:
                found.remove(record)
            else:
                self.landed.add(job.id)
            after_ts = free_before(
                first_ts, rows.commits().union(record.commit_ts for record in found)
            )
            if _columns_of(state) - _columns_of(left):  # else rows of before are read alike by both
                _check_order(job, table, after_ts, first_ts, rows.commits(table.id))
            state = left
            found.append(DdlRecord(after_ts, job.start_ts, job.id, job.schema_state, job.query))
            log.info(
                "DDL job %d is landed at commit_ts %d, before its binlog: rows of %s know it",
                job.id, after_ts, table.full_name,
            )  # fmt: skip

    def _first_by_others(
        self, table: Table, state: Table, firsts: Sequence[tuple[int, int]], after_ts: int
    ) -> _EarlyRow | None:
        """Return the first row behind `after_ts` by columns that `state` hasn't.

        It may also be a row whose columns TiKV has no longer.
        """
        for version, commit_ts in firsts:
            if commit_ts <= after_ts:
                continue
            try:
                info = self._info(table, commit_ts)
            except TiKVError as error:  # TiKV is there: it has collected that moment
                log.debug(
                    "TiKV no longer has what %s was at commit_ts %d: %s",
                    table.full_name,
                    commit_ts,
                    error,
                )
                return _EarlyRow(
                    commit_ts,
                    is_sure=False,
                    comes=_has_others(table, self._info(table, self._pd.tso()), state),
                )
            if _has_others(table, info, state):
                return _EarlyRow(commit_ts, is_sure=True, comes=True)
            if state is table:
                self._same[table.id] = max(version, self._same.get(table.id, 0))
        return None

    def _info(self, table: Table, ts: int) -> Mapping[str, Any] | None:
        return read_table_info(self._tikv, table.schema_id, table.id, ts)


def _has_others(table: Table, info: Mapping[str, Any] | None, state: Table) -> bool:
    """Return whether a definition of a table has columns that `state` hasn't.

    One that is gone has none.
    """
    if info is None:
        return False
    return bool(
        _columns_of(Table.from_tidb(info, table.schema_id, table.schema_name)) - _columns_of(state)
    )


def _columns_of(table: Table) -> set[tuple[object, ...]]:
    """Return what distinguishes rows of one definition from those of another."""
    return {
        (c.id, c.name, c.tp, c.flag & _FLAGS, c.flen, c.decimal, c.elems)
        for c in table.columns
        if c.public
    }


def _check_order(
    job: DdlHistoryJob, table: Table, after_ts: int, first_ts: int, commits: Collection[int]
) -> None:
    """Raise HistoryError if rows from before the change are committed behind its timestamp."""
    if passed := [commit_ts for commit_ts in commits if after_ts < commit_ts < first_ts]:
        raise HistoryError(
            f"DDL job {job.id} of {table.full_name} belongs between rows at commit_ts {max(passed)}"
            f" and {first_ts}, and no timestamp lies between",
            hint=f"`sluice txn skip {first_ts}`, then bring its rows with `sluice backfill`",
        )


def free_before(ts: int, taken: Collection[int]) -> int:
    """Return the last timestamp before `ts` that isn't `taken`."""
    ts -= 1
    while ts in taken:
        ts -= 1
    return ts
