"""The rows that windows of the relay log changed, by table: which keys.

They are read out of the windows' parts in this process, some windows at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from sluice.errors import SluiceError, ours
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.rules import Filter
from sluice.etl.changes.steps import LatestImagesDetail
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.changes.write_plans.latest_images import latest_of_each_key
from sluice.relay import RelayLog, WindowRecord, in_portions
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Table

__all__ = ["ChangeReader", "ChangedRows", "ChangedTable"]

log = logging.getLogger("sluice.verify")

_WRITE_PLAN = "newest"
_MAX_BATCH_CHANGES = 50_000
"""The changes read at a time."""
_MAX_BATCH_WINDOWS = 1_000

OnRead = Callable[[int, int], None]
"""Called with the changes and the bytes of parts that are about to be read. It waits if they are
too many, and may raise.
"""


@dataclass(slots=True)
class ChangedTable:
    """A table's changed rows.

    `images`: as `sluice.etl.changes.write_plans.latest_images` gives them, in order.
    """

    images: list[pa.Table] = field(default_factory=list)

    def keys(self, table: Table) -> pa.Table | None:
        """Return the keys as columns of `table`, each once.

        None if there are no such keys: the table has no key, or another one than at the time of the
        change.
        """
        key = lookup_key_columns(table)
        names = [column.name for column in key]
        if not key or not self.images:
            return None
        parts = [part for part in self.images if part.num_rows]
        if any(
            part.schema.get_field_index(c.name) < 0 or part[c.name].type != arrow_type(c)
            for part in parts
            for c in key
        ):
            return None
        if not parts:
            return None
        return latest_of_each_key(
            table, pa.concat_tables([part.select(names) for part in parts]).combine_chunks()
        )


@dataclass(slots=True)
class ChangedRows:
    """Changed rows through `until` (TSO), by table id.

    `unread`: windows that could not be looked through, (lo, hi, why).
    """

    until: int
    tables: dict[int, ChangedTable] = field(default_factory=dict)
    windows: int = 0
    changes: int = 0
    unread: list[tuple[int, int, str]] = field(default_factory=list)

    def table(self, table_id: int) -> ChangedTable:
        return self.tables.setdefault(table_id, ChangedTable())

    def add(self, table_id: int, payload: pa.Buffer) -> None:
        """Add images of a table, later than all that were added."""
        found = self.table(table_id)
        with pa.ipc.open_stream(payload) as reader:
            found.images.append(reader.read_all())


class ChangeReader:
    """Read the changes of a relay log's windows.

    Those of tables that `filters` want, without the transactions `ignored` (commit timestamps).
    `reading`: see `OnRead`.
    """

    def __init__(
        self,
        relay: RelayLog,
        filters: Filter,
        ignored: frozenset[int] = frozenset(),
        reading: OnRead | None = None,
    ) -> None:
        self._relay = relay
        self._options = PrepareOptions(_WRITE_PLAN, filters=filters, ignored_ts=ignored)
        self._reading = reading

    def collect(self, since: int, until: int, most: int = 0) -> ChangedRows:
        """Collect the changes committed after `since` through `until` (TSO).

        It stops after about `most` changes. Windows that can't be read are noted. Raises
        RelayGapError, OSError, and transient errors.
        """
        found = ChangedRows(since)
        for windows in in_portions(
            self._relay, since, until, windows=_MAX_BATCH_WINDOWS, changes=_MAX_BATCH_CHANGES
        ):
            if most and found.changes >= most:
                break
            if self._reading is not None:
                self._reading(
                    sum(w.changes for w in windows),
                    sum(part.bytes for w in windows for part in w.parts),
                )
            lo, hi = max(windows[0].lo, since), min(windows[-1].hi, until)
            try:
                self._read_windows(windows, found, lo, hi)
            except Exception as error:
                failure = ours(error)
                if failure.transient or not isinstance(failure, SluiceError):
                    raise
                log.warning(
                    "changes after %d through %d can't be read: %s",
                    lo,
                    hi,
                    failure,
                )
                found.unread.append((lo, hi, str(failure)))
            found.windows += len(windows)
            found.changes += sum(window.changes for window in windows)
            found.until = hi
        return found

    def _read_windows(
        self, windows: list[WindowRecord], found: ChangedRows, lo: int, hi: int
    ) -> None:
        decided = self._relay.overrides.list(lo, hi)
        document = BatchPayload.from_windows(windows, lo, hi).decided(list(decided))
        for step in prepare_steps(self._relay.url, document, self._options):
            if isinstance(step.detail, LatestImagesDetail):
                found.add(step.detail.table_id, step.payload)
