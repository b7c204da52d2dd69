"""Read some rows of both sides at the downstream's checkpoint, by a condition over their key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from sluice.etl.changes.formats.key_ranges import KeyColumn
from sluice.etl.copy.backfill.upstream_catalog import key_behind
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession, read_rows
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from sluice.etl.history.snapshots.preflight import downstream_table_of
from sluice.etl.settings import Settings
from sluice.etl.verify.errors import VerifyError
from sluice.etl.verify.full_scan import Low
from sluice.etl.verify.masked_rows import masked_rows
from sluice.etl.verify.merged_tables import MergedTable, merged_tables, renamed_as_first
from sluice.etl.verify.row_diff import RowDiff, as_table, diff_rows
from sluice.tidb.schema import Table

__all__ = ["LiveComparison", "LiveRows", "LiveUpstream", "open_live_rows"]


class LiveUpstream(Protocol):
    """The upstream's interface for verification. Both raise CopyError, PDError, TiKVError."""

    @property
    def address(self) -> TidbAddress: ...

    def definitions(self, ts: int) -> SourceSchema:
        """Return all tables as of `ts` (TSO)."""


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """A comparison; `rows`, `bytes`: read from the upstream; `diff_rows`: those that differ."""

    rows: int
    bytes: int
    apart: RowDiff


class LiveRows:
    """Both sides at `ts` (TSO), the downstream's checkpoint.

    `tables`: those that can be compared, by id; of tables that are merged the first one stands
    under the ids of all, `merged_tables` has all by its name. `own`: all tables that the upstream
    has, by id, `names` their names; `left_out`: why some can't be compared, by name.
    """

    def __init__(
        self,
        settings: Settings,
        snapshot: ConsistentReader,
        session: TidbSession,
        definitions: SourceSchema,
    ) -> None:
        self._snapshot = snapshot
        self._session = session
        self._sources: dict[int, tuple[Table, ...]] = {}
        self.ts = snapshot.checkpoint.commit_ts
        self._places: dict[int, DownstreamTable] = {}
        self._filters = settings.filters
        self.left_out: dict[str, str] = {}
        self.merged: dict[str, tuple[Table, ...]] = {}
        users = [table for table in definitions.of_users().tables if table.is_base_table]
        self.names = frozenset(table.full_name for table in users)
        self.own = {table.id: table for table in users}
        for group in merged_tables(settings, users):
            self._take_merged(group)
        for table in users:
            if table.id not in self._places and table.full_name not in self.left_out:
                place = downstream_table_of(settings, table, selected_too=True)
                if isinstance(place, str):
                    self.left_out[table.full_name] = place
                else:
                    self._places[table.id] = place

    def _take_merged(self, group: MergedTable) -> None:
        if why := group.unlike():
            self.left_out |= dict.fromkeys((table.full_name for table in group.tables), why)
            return
        first, *others = group.tables
        self.merged[first.full_name] = group.tables
        self._sources[first.id] = tuple(renamed_as_first(first, other) for other in others)
        self._places |= dict.fromkeys((table.id for table in group.tables), group.place)

    @property
    def tables(self) -> Mapping[int, Table]:
        return {
            table_id: _with_added(place.table, computes=True)
            for table_id, place in self._places.items()
        }

    def key_behind(
        self, table: Table, key: list[KeyColumn], within: tuple[Low, Low], rows: int
    ) -> Low:
        """See `sluice.etl.verify.full_scan.RangeBounds`."""
        return key_behind(self._session.query, table, key, within, rows)

    def compare(self, table: Table, condition: str) -> LiveComparison:
        """Compare the rows that a condition selects, "" for all of the table's.

        Raises CopyError, SnapshotError, TableChanged, DownstreamError.
        """
        where = condition or "TRUE"
        sources = (replace(table, columns=table.writable_columns), *self._sources.get(table.id, ()))
        ours = as_table(
            table,
            chain.from_iterable(
                masked_rows(
                    read_rows(self._session, source, f"({where}) AND {self._selected(source.id)}"),
                    source.columns,
                )
                for source in sources
            ),
        )
        place = self._places[table.id]
        held = replace(place, table=_with_added(place.table, computes=False))
        theirs = as_table(table, self._snapshot.rows_where(0, held, where))
        return LiveComparison(ours.num_rows, ours.nbytes, diff_rows(table, ours, theirs))

    def _selected(self, table_id: int) -> str:
        """Return the SQL condition of a table's rows that are downstream."""
        selection = self._filters.row_selection(self.own[table_id])
        return "TRUE" if selection is None else selection.sql()


def _with_added(table: Table, *, computes: bool) -> Table:
    """Return the table with the columns that rules add as plain ones, to be compared.

    `computes`: the server computes them, as it doesn't have them.
    """
    if not any(column.computed for column in table.columns):
        return table
    columns = (
        replace(column, generated="", computed=column.computed if computes else "")
        if column.computed
        else column
        for column in table.columns
    )
    return replace(table, columns=tuple(columns))


@contextmanager
def open_live_rows(
    settings: Settings, cluster_id: int, upstream: LiveUpstream, patience_s: float
) -> Iterator[LiveRows]:
    """Open both sides at the downstream's checkpoint.

    Raises SnapshotError, transient if there was no consistent checkpoint for `patience_s`;
    VerifyError, transient too, if TiDB no longer has that moment; DownstreamError, and what the
    upstream raises.
    """
    with ConsistentReader.open(
        settings.downstream, cluster_id, 1, patience_s=patience_s
    ) as snapshot:
        ts = snapshot.checkpoint.commit_ts
        with closing(TidbSession(upstream.address)) as session:
            try:
                session.read_at(ts)
            except CopyError as error:
                raise VerifyError(
                    f"TiDB can't be read as it was at the downstream's checkpoint {ts}: {error}",
                    transient=True,
                    hint=(
                        "see that applying catches up: TiDB forgets what is older than its GC's"
                        " life time"
                    ),
                ) from error
            yield LiveRows(settings, snapshot, session, upstream.definitions(ts))
