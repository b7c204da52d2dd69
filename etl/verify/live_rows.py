"""Some rows of both sides as of the downstream's checkpoint, named by a condition over their key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from etl.base.downstream_reader import DownstreamSnapshot
from etl.base.downstream_rows import DownstreamTable
from etl.base.hindrances import place_of
from etl.copy.definitions import Definitions
from etl.copy.errors import CopyError
from etl.copy.tidb_rows import read_rows
from etl.copy.tidb_session import TidbAddress, TidbSession
from etl.settings import Settings
from etl.verify.errors import VerifyError
from etl.verify.rows_apart import Apart, apart, as_table
from upstream.schema import Table

__all__ = ["Compared", "LiveRows", "Upstream", "live_rows"]


class Upstream(Protocol):
    """The upstream as it is needed here. Both raise CopyError, PDError, TiKVError."""

    @property
    def address(self) -> TidbAddress: ...

    def definitions(self, ts: int) -> Definitions:
        """All tables as of `ts` (TSO)."""


@dataclass(frozen=True, slots=True)
class Compared:
    """`rows`, `bytes`: what was read of the upstream; `apart`: what isn't the same."""

    rows: int
    bytes: int
    apart: Apart


class LiveRows:
    """Both sides at `ts` (TSO), the downstream's checkpoint. `tables`: those that can be compared, by id; `left_out`:
    of others that are replicated why they can't, by name.
    """

    def __init__(
        self, settings: Settings, snapshot: DownstreamSnapshot, session: TidbSession, definitions: Definitions
    ) -> None:
        self._snapshot = snapshot
        self._session = session
        self.ts = snapshot.checkpoint.commit_ts
        self._places: dict[int, DownstreamTable] = {}
        self.left_out: dict[str, str] = {}
        for table in definitions.of_users().tables:
            if table.is_base_table:
                place = place_of(settings, table)
                if isinstance(place, str):
                    self.left_out[table.full_name] = place
                else:
                    self._places[table.id] = place

    @property
    def tables(self) -> Mapping[int, Table]:
        return {table_id: place.table for table_id, place in self._places.items()}

    def compare(self, table: Table, condition: str) -> Compared:
        """The rows that a condition takes, "" for all of the table's. Raises CopyError, BaseError, TableChanged,
        DownstreamError.
        """
        where = condition or "TRUE"
        ours = as_table(table, read_rows(self._session, replace(table, columns=table.writable_columns), where))
        theirs = as_table(table, self._snapshot.rows_where(0, self._places[table.id], where))
        return Compared(ours.num_rows, ours.nbytes, apart(table, ours, theirs))


@contextmanager
def live_rows(settings: Settings, cluster_id: int, upstream: Upstream, patience_s: float) -> Iterator[LiveRows]:
    """Raises BaseError, transient if there was no consistent checkpoint for so long; VerifyError, transient too, if
    TiDB no longer knows that moment; DownstreamError, and what the upstream raises.
    """
    with DownstreamSnapshot.open(settings.downstream, cluster_id, 1, patience_s=patience_s) as snapshot:
        ts = snapshot.checkpoint.commit_ts
        with closing(TidbSession(upstream.address)) as session:
            try:
                session.read_at(ts)
            except CopyError as error:
                raise VerifyError(
                    f"TiDB can't be read as it was at the downstream's checkpoint {ts}: {error}",
                    transient=True,
                    way_out="see that applying catches up: TiDB forgets what is older than its GC's life time",
                ) from error
            yield LiveRows(settings, snapshot, session, upstream.definitions(ts))
