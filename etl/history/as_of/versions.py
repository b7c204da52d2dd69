"""Describe a table between two DDL: its rows' columns, identity and distribution to workers.

A column is followed through DDL by its **label**: it keeps it while its values stay as they are,
under whatever name, and has another one (or none that any other column has) once they were computed
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.etl.history.errors import AsOfError
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

INEXACT_KINDS = ("float",)
"""Kinds of which a snapshot may have fewer digits than the binlog: large and small FLOATs are shown
with six.
"""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as it is from one DDL to the next."""

    table: Table
    labels: Mapping[str, str]
    """The columns that rows hold here, by name, with their labels."""
    lenient: bool = False
    """Changes needn't fit what is there: transactions were left out, or a partition is about to be
    dropped.
    """
    dealt_by: tuple[str, ...] = ()
    """The columns that decide a row's bucket."""
    leaving: frozenset[str] = frozenset()
    """Columns that the next DDL drops: some old images may come without them."""

    @property
    def columns(self) -> list[Column]:
        """Return those that rows hold, in table order."""
        return [column for column in self.table.stored_columns if column.name in self.labels]

    @property
    def writable(self) -> list[Column]:
        """Return those of them that aren't generated."""
        return [column for column in self.columns if not column.generated]

    @property
    def key(self) -> list[Column]:
        """Return the clustered key, which identifies rows byte for byte.

        TiDB writes nothing over an existing row. [] for other tables, for their rows are identified
        by all their values: a transaction may have a key twice for a time, while rows exchange
        theirs. [] too where the values of a generated column of the key are unknown.
        """
        by_name = {column.name: column for column in self.columns}
        names = self.table.primary_key if self.table.handle_kind != "heap" else ()
        return [by_name[name] for name in names] if by_name.keys() >= set(names) else []

    @property
    def identity(self) -> list[Column]:
        """Return the key, else everything that a statement can set."""
        return self.key or self.writable

    @property
    def steady_key(self) -> list[Column]:
        """Return the key that identifies a row over time: the primary key, else a unique one.

        It has no NULLs.
        """
        by_name = {column.name: column for column in self.columns}
        for names in self.table.unique_keys():
            columns = [by_name[name] for name in names if name in by_name]
            if len(columns) == len(names) and (
                names == self.table.primary_key or all(c.not_null for c in columns)
            ):
                return columns
        return []

    @classmethod
    def from_table(cls, table: Table, brings: frozenset[str] | None = None) -> TableVersion:
        """Make the version of a new table, or of one from a snapshot.

        The snapshot `brings` these stored generated columns.
        """
        columns = (
            c for c in table.stored_columns if not c.generated or brings is None or c.name in brings
        )
        return cls(table, {column.name: folded(column.name) for column in columns})

    def after(self, ddl: DdlJob, table: Table) -> TableVersion:
        """Return the version behind a DDL that leaves `table`. Raises AsOfError."""
        old = pair_columns(self.table, table, ddl)
        labels = {}
        for column in table.stored_columns:
            was = old.get(column.id)
            if was is not None and not column.generated and was.name not in self.labels:
                raise AsOfError(
                    f"{ddl.title}, `{ddl.query[:200]}`: {table.full_name}.{column.name} was"
                    " generated, so no snapshot holds the values that it has since"
                )
            if was is not None and not is_converted(was, column):
                if was.name in self.labels:
                    labels[column.name] = self.labels[was.name]
            elif not column.generated:
                labels[column.name] = f"{folded(column.name)} {ddl.commit_ts}"
        return TableVersion(table, labels)

    def renumbered(self, table: Table) -> TableVersion:
        """Return the version under another table id."""
        return replace(self, table=table)


def is_converted(old: Column, new: Column) -> bool:
    """Return whether a column's values are others than before."""
    return old.id != new.id or old.kind != new.kind or arrow_type(old) != arrow_type(new)
