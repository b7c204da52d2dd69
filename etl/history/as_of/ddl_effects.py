"""Apply DDL's effects to existing rows: none of them is in the binlog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.etl.changes.planning import PartitionError, partition_ids, partition_of
from sluice.etl.history.as_of.advance import empty_rows, schema
from sluice.etl.history.as_of.versions import TableVersion, is_converted
from sluice.etl.history.errors import AsOfError
from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.codec.columnar import arrow_type, constant
from sluice.tidb.conversion import ConversionError, convert
from sluice.tidb.ddl_actions import REMOVES_PARTITIONS, Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table
from sluice.tidb.time_zone import session_of

_TIMES = ("datetime", "timestamp", "time")


class BucketTables:
    """Rows of the tables of a family, as far as they are in one bucket."""

    def __init__(self, versions: Mapping[int, TableVersion]) -> None:
        self.rows: dict[int, pa.Table] = {i: empty_rows(version) for i, version in versions.items()}
        self._dropped: dict[int, tuple[TableVersion, pa.Table]] = {}
        self._misplaced: set[int] = set()

    def execute(
        self, ddl: DdlJob, before: Mapping[int, TableVersion], after: Mapping[int, TableVersion]
    ) -> None:
        """Go on behind a DDL. `before`, `after`: the tables there are, by id. Raises AsOfError."""
        if ddl.type == Action.EXCHANGE_PARTITION:
            self._exchange(ddl, before, after)
            return
        left = {i: (before[i], self.rows.pop(i)) for i in list(self.rows) if i not in after}
        self._dropped |= left
        for table_id, version in after.items():
            if table_id not in ddl.effect.tables:
                continue
            found = self._before(ddl, table_id, before, left)
            if found is None:
                self.rows[table_id] = empty_rows(version)
                continue
            was, rows = found
            if ddl.type in REMOVES_PARTITIONS:
                rows = self._without_partitions(ddl, was, version, rows)
            self.rows[table_id] = altered_rows(ddl, was, version, rows)

    def _before(
        self,
        ddl: DdlJob,
        table_id: int,
        before: Mapping[int, TableVersion],
        left: Mapping[int, tuple[TableVersion, pa.Table]],
    ) -> tuple[TableVersion, pa.Table] | None:
        """Return a table's version before the DDL, and its rows; None if it is new."""
        if table_id in before:
            return before[table_id], self.rows[table_id]
        if ddl.type in (Action.RECOVER_TABLE, Action.RECOVER_SCHEMA):
            return self._dropped.pop(table_id, None)
        if ddl.type in (Action.PARTITION_TABLE, Action.REMOVE_PARTITIONING):
            return next(iter(left.values()), None)
        return None

    def _without_partitions(
        self, ddl: DdlJob, was: TableVersion, version: TableVersion, rows: pa.Table
    ) -> pa.Table:
        gone = partition_ids(was.table).keys() - partition_ids(version.table).keys()
        places = self._partitions(ddl, was, rows)
        return rows.filter(pa.array(~np.isin(places, list(gone))))

    def _exchange(
        self, ddl: DdlJob, before: Mapping[int, TableVersion], after: Mapping[int, TableVersion]
    ) -> None:
        old_id = next(i for i, table in ddl.effect.tables.items() if table is None)
        new_id = next(i for i in ddl.effect.tables if i in after and i not in before)
        whole_id = next(i for i in ddl.effect.tables if i in after and i in before)
        was, rows, come = before[whole_id], self.rows[whole_id], self.rows.pop(old_id)
        inside = self._partitions(ddl, was, rows) == new_id
        if (self._partitions(ddl, was, come) != new_id).any():
            self._misplaced.add(whole_id)  # WITHOUT VALIDATION
        names = [column.name for column in after[whole_id].columns]
        stay = rows.filter(pa.array(~inside)).select(names)
        self.rows[whole_id] = pa.concat_tables([stay, come.select(names)]).combine_chunks()
        self.rows[new_id] = rows.filter(pa.array(inside)).select(
            [c.name for c in after[new_id].columns]
        )

    def _partitions(self, ddl: DdlJob, version: TableVersion, rows: pa.Table) -> np.ndarray:
        """Return the id of the partition of each row."""
        table = version.table
        if table.id in self._misplaced:
            raise AsOfError(
                f"{ddl.title}, `{ddl.query[:200]}`: an EXCHANGE PARTITION before it put rows into"
                f" {table.full_name} that belong to other partitions (WITHOUT VALIDATION), so which"
                " rows go is unknown"
            )
        try:
            found = [partition_of(table, row) or -1 for row in _partition_rows(version, rows)]
        except PartitionError as error:
            raise AsOfError(f"{ddl.title}, `{ddl.query[:200]}`: {error}") from error
        return np.array(found, np.int64)


def _partition_rows(version: TableVersion, rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows, with the columns that may decide their partition."""
    info = version.table.partition or {}
    text = f"{info.get('expr') or ''} {info.get('columns') or ''}".lower()
    names = [column.name for column in version.columns if column.name.lower() in text]
    found: list[dict[str, Any]] = rows.select(names or rows.column_names).to_pylist()
    return found


def altered_rows(ddl: DdlJob, was: TableVersion, version: TableVersion, rows: pa.Table) -> pa.Table:
    """Return rows of a table whose definition a DDL changed. Raises AsOfError."""
    old = pair_columns(was.table, version.table, ddl)
    arrays = []
    for column in version.columns:
        source = old.get(column.id)
        if source is None:
            arrays.append(constant(missing_value(column), arrow_type(column), rows.num_rows))
        else:
            arrays.append(
                _changed_values(
                    ddl, version.table, source, column, rows[source.name].combine_chunks()
                )
            )
    return pa.Table.from_arrays(arrays, schema=schema(version.columns))


def _changed_values(
    ddl: DdlJob, table: Table, old: Column, new: Column, values: pa.Array
) -> pa.Array:
    if new.not_null and not old.not_null and values.null_count:
        raise AsOfError(
            f"{ddl.title}, `{ddl.query[:200]}`: {table.full_name}.{new.name} held NULL, for which"
            " TiDB put in a value of its clock or its mode"
        )
    if not is_converted(old, new):
        return _with_fraction(old, new, values)
    distinct = values.dictionary_encode()
    listed = [
        _PARSERS.get(old.kind, _plain)(old, value)
        for value in _known_elements(old, distinct.dictionary)
    ]
    try:
        return convert(listed, old, new, session_of(ddl)).take(distinct.indices)
    except ConversionError as error:
        raise AsOfError(
            f"{ddl.title}, `{ddl.query[:200]}`, changed the type of {table.full_name}.{new.name}:"
            f" the value {error}"
        ) from error


def _with_fraction(old: Column, new: Column, values: pa.Array) -> pa.Array:
    """Add digits of a second to times: TiDB doesn't rewrite them, but reads them with more."""
    if new.kind not in _TIMES or new.fsp <= old.fsp:
        return values
    more = ("" if old.fsp else ".") + "0" * (new.fsp - old.fsp)
    return pc.binary_join_element_wise(
        values, pa.scalar(more, values.type), pa.scalar("", values.type)
    )


def _known_elements(column: Column, values: pa.Array) -> list[Any]:
    """Return the values; texts as bytes, as they needn't be utf-8."""
    found: list[Any] = (
        values.cast(pa.large_binary()).to_pylist() if column.kind == "text" else values.to_pylist()
    )
    return found


def _plain(column: Column, value: Any) -> Any:
    return value


def _enum_number(column: Column, value: str) -> int:
    return column.elems.index(value) + 1 if value else 0


def _set_bits(column: Column, value: str) -> int:
    return sum(1 << column.elems.index(name) for name in value.split(",")) if value else 0


_PARSERS: Mapping[str, Callable[[Column, Any], Any]] = {"enum": _enum_number, "set": _set_bits}
