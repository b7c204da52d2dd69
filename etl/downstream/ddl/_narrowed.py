"""Write DDL for files and topics whose tables have columns that rules leave out, rename or mask.

Such sinks record the upstream's statement. Where a rule leaves out or renames columns of its
tables, a reader who executes the statement would have other columns than the rows. Where it masks
some, the statement may have their clear defaults. So statements about columns and indexes are made
from the tables, as for a database that is as the table was before. Other statements stay as they
are, since they name no columns, or are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.ddl_partitions import partition_clause, plain_name
from sluice.etl.changes.formats.ddl_text import tokens
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream.ddl._alter import Alteration, index_key, index_shape
from sluice.etl.downstream.ddl._generate import column_type, create_table, index_definition
from sluice.etl.downstream.ddl._limits import fit_index
from sluice.etl.downstream.ddl._state import ActualColumn, IndexShape
from sluice.etl.downstream.ddl.executor import DdlError
from sluice.tidb.ddl_actions import Action
from sluice.tidb.folded import folded
from sluice.tidb.schema import STATE_PUBLIC, Column, Table

READERS = Dialect.from_version("8.0.11-TiDB-v8.3.0")
"""Readers got TiDB's statements before, so they understand those for a TiDB."""

_CREATES = {Action.CREATE_TABLE, Action.CREATE_TABLES}
_ALTERS = {
    Action.ADD_COLUMN,
    Action.DROP_COLUMN,
    Action.ADD_COLUMNS,
    Action.DROP_COLUMNS,
    Action.MODIFY_COLUMN,
    Action.SET_DEFAULT_VALUE,
    Action.ADD_INDEX,
    Action.DROP_INDEX,
    Action.DROP_INDEXES,
    Action.RENAME_INDEX,
    Action.ALTER_INDEX_VISIBILITY,
    Action.MULTI_SCHEMA_CHANGE,
}
"""Statements that may name columns that are left out, or indexes over them."""
_DATA_TYPE = re.compile(r"[A-Z]+")


def narrowed_statements(ddl: ScopedDdl) -> tuple[list[str], list[str]]:
    """Return (statements, what they leave out or change) of a DDL with columns that rules shape.

    No statement if it is about left-out columns alone. Raises DdlError for one that names such a
    column and isn't about columns or indexes.
    """
    if ddl.type in _CREATES:
        tables = [t for t in ddl.effect.tables.values() if t is not None and t.is_base_table]
        made = [create_table(table, READERS) for table in tables]
        return [statement for statement, _ in made], [one for _, some in made for one in some]
    if ddl.type not in _ALTERS:
        _check_names(ddl)
        return [ddl.query], []
    found = [
        Alteration(_DefinedTable(old), READERS, old, table, ddl).result()
        for old, table in ddl.table_pairs()
    ]
    return [one for some, _ in found for one in some], [one for _, some in found for one in some]


def _check_names(ddl: ScopedDdl) -> None:
    tables = [t for t in (*ddl.before.values(), *ddl.effect.tables.values()) if t is not None]
    own = {folded(name) for table in tables for name in (table.schema_name, table.name)}
    words = set(_words(ddl.query))
    renamed = {c.upstream_name for table in tables for c in table.columns if c.public} - {""}
    unknown = dict.fromkeys(sorted(renamed), "renames") | dict.fromkeys(ddl.left_out, "leaves out")
    for name, what in unknown.items():
        if folded(name) in words - own:
            raise DdlError(
                f"{ddl.title} in {ddl.schema_name} names column {name}, which [[filter.columns]]"
                f" {what}, so a reader can't execute it. Statement: {ddl.query[:2000]}.",
                hint=(
                    f"leave it out: `sluice ddl skip {ddl.commit_ts}`; or have another statement"
                    f" recorded: `sluice ddl replace {ddl.commit_ts} --sql '...'`"
                ),
            )


def _words(statement: str) -> Iterator[str]:
    """Yield folded names and words of a statement, also of comments, which TiDB may execute."""
    for token in tokens(statement):
        if token.startswith("/*"):
            yield from _words(token[2:-2])
        elif token[0] in '`"' and len(token) > 1:
            yield folded(token[1:-1].replace(token[0] * 2, token[0]))
        else:
            yield folded(token)


@dataclass(frozen=True, slots=True)
class _DefinedTable:
    """A table that is as it is defined: an `ActualTable`."""

    table: Table

    def columns(self) -> list[ActualColumn]:
        return [
            ActualColumn(column.name, column.collate, _data_type(column), bool(column.generated))
            for column in self.table.columns
            if column.public and not column.hidden
        ]

    def indexes(self) -> dict[str, IndexShape]:
        found: dict[str, IndexShape] = {}
        handle = self.table.handle_column
        if handle is not None:
            found["primary"] = True, ((folded(handle.name), 0),)
        for index in self.table.indexes:
            definitions, _ = index_definition(self.table, index, READERS)
            if index.state == STATE_PUBLIC and definitions:
                found[index_key(index)] = index_shape(
                    fit_index(self.table, index, READERS) or index
                )
        return found

    def partitions(self) -> list[str]:
        if not partition_clause(self.table):
            return []
        definitions = (self.table.partition or {}).get("definitions") or ()
        return [folded(plain_name(each["name"])) for each in definitions]

    def has_foreign_key(self, name: str) -> bool:
        return any(plain_name(key["fk_name"]) == name for key in self.table.foreign_keys)


def _data_type(column: Column) -> str:
    found = _DATA_TYPE.search(column_type(column))
    return found[0].lower() if found else ""
