"""Build ALTER TABLE from the table before a DDL job and the table after it.

What a statement means depends on the session it was written in: its database, ANSI_QUOTES,
backslashes. What it did doesn't: TiDB keeps the whole table as each DDL job leaves it. So the
difference is executed, against what the downstream has; what it holds in another form
(`sluice.etl.changes.formats.table_fallbacks`) stays in that form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.etl.changes.formats.ddl_partitions import (
    partition_change,
    partition_clause,
    plain_name,
    rows_of_partitions,
)
from sluice.etl.changes.formats.sql_text import quote_name, quote_table, quote_text
from sluice.etl.changes.formats.table_fallbacks import (
    as_bytes,
    as_stored_downstream,
    bound_columns,
    holds_bytes,
    kept_as_long_type,
)
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl._generate import (
    column_comment_warning,
    column_definition,
    foreign_key_definition,
    index_definition,
    table_options,
    too_many_indexes,
)
from sluice.etl.downstream.ddl._limits import (
    MAX_INDEXES,
    MAX_TABLE_COMMENT_CHARS,
    comment_warning,
    fit_comment,
    fit_index,
)
from sluice.etl.downstream.ddl._state import (
    ActualColumn,
    ActualTable,
    IndexShape,
    ServerTable,
)
from sluice.tidb.column_types import LONG
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import STATE_PUBLIC, Column, Index, Table
from sluice.tidb.table_name import full_name

_NEW_COLUMN = re.compile(r"ADD COLUMN `(?:[^`]|``)*`")
_BOUNDED_TYPES = {"varchar", "char", "varbinary", "binary"}


def alterations(
    session: MySQLSession, old: Table, table: Table, ddl: DdlJob
) -> tuple[list[str], list[str]]:
    """Return (statements, warnings) that make the downstream's `old` the table it is to be.

    [] if there is nothing to do. May be asked for again after a crash.
    """
    return Alteration(ServerTable(session, table), session.dialect, old, table, ddl).result()


class Alteration:
    """Build the statements that make `old`, which is as `actual` has it, the table it is to be."""

    def __init__(
        self, actual: ActualTable, dialect: Dialect, old: Table, table: Table, ddl: DdlJob
    ) -> None:
        self._actual_table = actual
        self._dialect = dialect
        self._ddl = ddl
        self._actual = {folded(column.name): column for column in actual.columns()}
        self._partition_names = actual.partitions()
        self._pairs = pair_columns(old, table, ddl)
        self._old = old
        bound = bound_columns(table)
        self._table = replace(
            table, columns=tuple(self._held(column, bound) for column in table.columns)
        )
        self._warnings: list[str] = []

    def result(self) -> tuple[list[str], list[str]]:
        """Return (statements, warnings); no statement if there is nothing to do."""
        if not self._actual:
            return [], []
        clauses = [
            *self._drop_foreign_keys(),
            *self._columns(),
            *self._indexes(),
            *self._foreign_keys(),
            *self._options(),
        ]
        pieces = _split_clauses(clauses, together=self._dialect.indexes_new_columns)
        statements = [
            f"ALTER TABLE {quote_table(self._table)} {', '.join(some)}" for some in pieces
        ]
        # Partitions come first: they may not allow an index, and where the server rejects their
        # change, nothing else of this form is left behind.
        return self._partitions() + statements, self._warnings

    def _partitions(self) -> list[str]:
        if self._partition_names and not partition_clause(self._table):
            return [f"ALTER TABLE {quote_table(self._table)} REMOVE PARTITIONING"]
        truncates = self._ddl.type == Action.TRUNCATE_PARTITION
        change = partition_change(self._old, self._table, truncates=truncates)
        target = quote_table(self._table)
        if not change or not partition_clause(self._table):
            return []
        if self._partition_names or not partition_clause(self._old):
            return (
                []
                if self._is_partitioned_as_wanted() and not truncates
                else [f"ALTER TABLE {target} {change}"]
            )
        # It was created without its partitions: their rows are as good as any, but for those that
        # go.
        kept = {d["id"] for d in (self._table.partition or {}).get("definitions") or ()}
        gone = {d["id"] for d in (self._old.partition or {}).get("definitions") or ()} - kept
        removes = truncates or self._ddl.type == Action.DROP_PARTITION
        return (
            [f"DELETE FROM {target} WHERE {rows_of_partitions(self._old, gone)}"]
            if removes and gone
            else []
        )

    def _is_partitioned_as_wanted(self) -> bool:
        """Return whether the partitions are changed already, by an interrupted run."""
        wanted = [
            folded(plain_name(d["name"]))
            for d in (self._table.partition or {}).get("definitions") or ()
        ]
        old = [
            folded(plain_name(d["name"]))
            for d in (self._old.partition or {}).get("definitions") or ()
        ]
        return wanted != old and self._partition_names == wanted

    def _where(self, column: Column) -> ActualColumn | None:
        """Return the downstream's column that is to become (or is) `column`."""
        was = self._pairs.get(column.id)
        named = [column.name] if was is None else [was.name, column.name]
        if (
            was is not None
            and folded(column.name) in self._actual
            and folded(column.name) not in {folded(c.name) for c in self._old.columns if c.public}
        ):
            named.reverse()  # it has its new name already
        return next(
            (self._actual[folded(name)] for name in named if folded(name) in self._actual), None
        )

    def _held(self, column: Column, bound: set[str]) -> Column:
        """Return `column` in the form in which the downstream holds it, if that form still fits."""
        actual, was = self._where(column), self._pairs.get(column.id)
        if actual is None or was is None:
            return column
        if holds_bytes(was, actual.data_type) and column.kind == "text":
            column = as_bytes(column)
        if folded(column.name) not in bound:
            column = kept_as_long_type(column, was, actual.data_type)
        return (
            replace(column, generated="", generated_stored=False)
            if column.generated_stored and not actual.generated
            else column
        )

    def _columns(self) -> Iterator[str]:
        wanted = [c for c in self._table.columns if c.public and not c.hidden]
        placed = self._in_place(wanted)
        before = ""
        for column in wanted:
            actual, was = self._where(column), self._pairs.get(column.id)
            if actual is None and was is not None and column.generated:
                continue  # left out so far
            definition = column_definition(column, self._dialect)
            was_comment = was.comment if was is not None else ""
            place = f" AFTER {quote_name(before)}" if before else " FIRST"
            before = column.name
            if actual is None:
                self._warnings += column_comment_warning(self._table, column)
                yield f"ADD COLUMN {definition}{place if column.id not in placed else ''}"
                continue
            moves = column.id not in placed
            same_name = folded(actual.name) == folded(column.name)
            if (
                same_name
                and not moves
                and was is not None
                and self._as_before(was, column, actual) == definition
            ):
                continue
            verb = (
                f"MODIFY COLUMN {definition}"
                if same_name
                else f"CHANGE COLUMN {quote_name(actual.name)} {definition}"
            )
            if same_name and was is None and not moves:
                continue  # added before an interruption
            self._warnings += (
                column_comment_warning(self._table, column) if column.comment != was_comment else []
            )
            yield f"{verb}{place if moves else ''}"
        kept = {folded(c.name) for c in wanted} | {folded(c.name) for c in self._pairs.values()}
        for gone in self._old.columns:
            if (
                gone.public
                and not gone.hidden
                and folded(gone.name) in self._actual
                and folded(gone.name) not in kept
            ):
                yield f"DROP COLUMN {quote_name(gone.name)}"

    def _as_before(self, was: Column, column: Column, actual: ActualColumn) -> str:
        """Return the present definition of the downstream's column, under its present name."""
        if was.tp in LONG and actual.data_type in _BOUNDED_TYPES:
            return ""  # only now it is to be made longer
        return column_definition(
            as_stored_downstream(
                replace(was, name=column.name), actual.data_type, generated=actual.generated
            ),
            self._dialect,
        )

    def _in_place(self, wanted: Sequence[Column]) -> set[int]:
        """Return the ids of columns that already follow each other in the wanted order.

        The rest is moved, or added, behind its neighbour. New columns at the end belong there.
        """
        order = {name: n for n, name in enumerate(self._actual)}
        places = [
            (column, order[folded(actual.name)] if (actual := self._where(column)) else None)
            for column in wanted
        ]
        best: list[tuple[int, list[Column]]] = []  # the longest ascending run that ends at a place
        for column, at in places:
            if at is not None:
                longest = max((run for end, run in best if end < at), key=len, default=[])
                best.append((at, [*longest, column]))
        found = {column.id for column in max((run for _, run in best), key=len, default=[])}
        for column, at in reversed(places):
            if at is not None:
                break
            found.add(column.id)
        return found

    def _indexes(self) -> Iterator[str]:
        actual = self._actual_table.indexes()
        renamed = {folded(was.name): self._now(i).name for i, was in self._pairs.items()}
        now = {
            index_key(index): index for index in self._table.indexes if index.state == STATE_PUBLIC
        }
        by_id = {index.id: index for index in now.values()}
        dropped: set[str] = set()
        for old in self._old.indexes:
            name = index_key(old)
            new = by_id.get(old.id)
            if new is not None and index_shape(new) == index_shape(old, renamed):
                yield from self._surviving_index(old, new, there=name in actual)
            elif name in actual and (
                index_key(old) not in now or actual[name] != index_shape(now[index_key(old)])
            ):
                dropped.add(name)
                yield (
                    "DROP PRIMARY KEY"
                    if name == "primary"
                    else f"DROP INDEX {quote_name(old.name)}"
                )
        known = {(old.id, index_shape(old, renamed)) for old in self._old.indexes}
        room = MAX_INDEXES - len(actual) + len(dropped)
        for index in now.values():
            if (index.id, index_shape(index)) in known:
                continue
            fit = fit_index(self._table, index, self._dialect)
            if (
                fit is not None
                and actual.get(index_key(index)) == index_shape(fit)
                and index_key(index) not in dropped
            ):
                continue
            definitions, warnings = index_definition(self._table, index, self._dialect)
            if len(definitions) > room:
                definitions, warnings = [], [too_many_indexes(self._table, index)]
            room -= len(definitions)
            self._warnings += warnings
            yield from (f"ADD {definition}" for definition in definitions)

    def _now(self, column_id: int) -> Column:
        return next(column for column in self._table.columns if column.id == column_id)

    def _surviving_index(self, old: Index, new: Index, *, there: bool) -> Iterator[str]:
        if not there:
            if old.name != new.name or old.invisible != new.invisible:
                self._warnings.append(
                    f"index {new.name} of {self._table.full_name} was left out before"
                )
            return
        if old.name != new.name:
            yield f"RENAME INDEX {quote_name(old.name)} TO {quote_name(new.name)}"
        if old.invisible != new.invisible:
            yield (
                f"ALTER INDEX {quote_name(new.name)}"
                f" {self._dialect.index_visibility[new.invisible]}"
            )

    def _drop_foreign_keys(self) -> Iterator[str]:
        kept = {key.get("id") for key in self._table.foreign_keys}
        for key in self._old.foreign_keys:
            name = plain_name(key["fk_name"])
            if key.get("id") not in kept and self._actual_table.has_foreign_key(name):
                yield f"DROP FOREIGN KEY {quote_name(name)}"

    def _foreign_keys(self) -> Iterator[str]:
        known = {key.get("id") for key in self._old.foreign_keys}
        for key in self._table.foreign_keys:
            if key.get("id") not in known and not self._actual_table.has_foreign_key(
                plain_name(key["fk_name"])
            ):
                yield f"ADD {foreign_key_definition(key)}"

    def _options(self) -> Iterator[str]:
        old, new = self._old, self._table
        if (old.charset, old.collate) != (new.charset, new.collate) and new.charset:
            yield table_options(new, self._dialect)
        if old.comment != new.comment:
            self._warnings += comment_warning(new.full_name, new.comment, MAX_TABLE_COMMENT_CHARS)
            yield f"COMMENT={quote_text(fit_comment(new.comment, MAX_TABLE_COMMENT_CHARS))}"
        if new.auto_increment > old.auto_increment:
            yield f"AUTO_INCREMENT={new.auto_increment}"


def _split_clauses(clauses: list[str], *, together: bool) -> list[list[str]]:
    """Group the clauses into statements.

    All go into one, which runs as a whole or not at all, unless new columns have to be there
    before an index on them.
    """
    names = {clause: name[0] for clause in clauses if (name := _NEW_COLUMN.match(clause))}
    keys = " ".join(
        clause for clause in clauses if clause.startswith("ADD ") and clause not in names
    )
    needed = not together and any(
        name.removeprefix("ADD COLUMN ") in keys for name in names.values()
    )
    columns = list(names) if needed else []
    rest = [clause for clause in clauses if clause not in columns]
    return [some for some in (columns, rest) if some]


def index_key(index: Index) -> str:
    """Return the name by which servers list the index, in lower case."""
    return "primary" if index.primary else folded(index.name)


def index_shape(index: Index, renamed: Mapping[str, str] | None = None) -> IndexShape:
    """Return the shape of the index; `renamed`: new names of columns by their folded old ones."""
    names = renamed or {}
    columns = tuple(
        (folded(names.get(folded(name), name)), max(length, 0)) for name, _, length in index.columns
    )
    return index.unique or index.primary, columns


def drop_foreign_keys(session: MySQLSession, table: Table) -> list[str]:
    """Drop every foreign key of a table and on it; what was dropped, as warnings.

    TiDB names keys in its own way, so a DDL that drops one upstream may leave it here, in the way
    of the next statement; rows are never checked against it.
    """
    found = session.query(
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM"
        " information_schema.REFERENTIAL_CONSTRAINTS WHERE (CONSTRAINT_SCHEMA = %s AND TABLE_NAME ="
        " %s) OR (UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s)",
        (table.schema_name, table.name) * 2,
    )
    warnings = []
    for schema, name, key in ((str(a), str(b), str(c)) for a, b, c in found):
        session.execute(
            f"ALTER TABLE {quote_name(schema)}.{quote_name(name)} DROP FOREIGN KEY"
            f" {quote_name(key)}"
        )
        warnings.append(
            f"foreign key {key} of {full_name(schema, name)} dropped: it was in the way"
        )
    return warnings
