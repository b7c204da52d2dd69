"""Know the unique indexes that the upstream gives up before a DDL binlog names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sluice.tidb.ddl_schema_versions import ReadDiff, as_info, loosened_tables, relaxed_indexes
from sluice.tidb.schema import Table


class RelaxedKeys:
    """The indexes by table, from the schema version that gives them up to the table's DDL binlog.

    A schema version newer than the last DDL of a table shows that a change was under way. Which
    keys it gives up is in TiKV.
    """

    def __init__(self, relaxed: Mapping[str, Any] | None) -> None:
        """Create the relaxed keys; `relaxed`: as in the last window record."""
        self._relaxed: dict[int, Sequence[int]] = {
            int(i): list(indexes) for i, indexes in (relaxed or {}).items()
        }
        self._weakened_tables: dict[int, tuple[int, bool]] = {}
        """A schema version that may give up keys, and whether it removes partitions, by table id.

        No DDL binlog of the table has come since.
        """

    def add_version(self, version: int, read_diff: ReadDiff, changed_at: Mapping[int, int]) -> None:
        """Record the tables whose keys, partitions or columns a schema version may give up.

        `changed_at`: the version of each table's last landed DDL. The version stays recorded until
        a DDL binlog of its table comes. Another table's DDL of a higher version may come first.
        """
        for table_id, drops in loosened_tables((version,), read_diff).items():
            if version > changed_at.get(table_id, 0):
                _, before = self._weakened_tables.get(table_id, (0, False))
                self._weakened_tables[table_id] = version, drops or before

    def drop_landed(self, table_ids: Iterable[int]) -> None:
        """Forget the indexes of tables whose DDL is landed."""
        for table_id in table_ids:
            self._relaxed.pop(table_id, None)

    def of_window(
        self,
        states: Mapping[int, Sequence[Table]],
        changed_before: Mapping[int, int],
        changed_at: Mapping[int, int],
        latest_info: Callable[[Table], Mapping[str, Any] | None],
    ) -> dict[int, tuple[int, ...]]:
        """Return by table id the indexes that the upstream no longer enforces in a window.

        `states`: the tables as they are in the window, one after the other. `changed_before`,
        `changed_at`: the schema version of each table's last DDL before and through the window.
        `latest_info` returns a table's TableInfo now.
        """
        relaxed = dict(self._relaxed)
        for table_id in self._weakened_tables.keys() & states.keys():
            _, drops = self._weakened_tables[table_id]
            *_, last = states[table_id]
            to_come = relaxed_indexes(last, latest_info(last))
            is_over = changed_at.get(table_id, 0) != changed_before.get(table_id, 0)
            if to_come or (drops and not is_over):
                self._relaxed[table_id] = to_come
            given_up = {
                index
                for table in states[table_id]
                for index in relaxed_indexes(table, as_info(last))
            }
            found = sorted(given_up.union(to_come))
            if found or drops:
                relaxed[table_id] = found
            if not to_come and not drops:
                del self._weakened_tables[table_id]
        self._weakened_tables = {
            i: found
            for i, found in self._weakened_tables.items()
            if found[0] > changed_at.get(i, 0)
        }
        return {i: tuple(indexes) for i, indexes in relaxed.items()}
