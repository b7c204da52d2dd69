"""Build SQL from a table's description: definitions of its parts, and CREATE statements.

The parts are columns, indexes and foreign keys; CREATE is for tables, views and sequences. TiDB's
own text isn't executed: what it means depends on the session it was written in. These are for a
session with NO_BACKSLASH_ESCAPES: in strings only the quote is doubled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.ddl_partitions import partition_clause, plain_name
from sluice.etl.changes.formats.ddl_text import charset_name, collation_name, element_type
from sluice.etl.changes.formats.sql_text import quote_name, quote_table, quote_text
from sluice.etl.downstream.ddl._limits import (
    MAX_COLUMN_COMMENT_CHARS,
    MAX_INDEX_COMMENT_CHARS,
    MAX_INDEXES,
    MAX_TABLE_COMMENT_CHARS,
    comment_warning,
    fit_comment,
    fit_index,
    shortened_columns,
    unfit_name,
)
from sluice.tidb import column_types
from sluice.tidb.schema import STATE_PUBLIC, Column, Index, Table

_INTEGER_TYPES = {
    column_types.TINYINT: "TINYINT",
    column_types.SMALLINT: "SMALLINT",
    column_types.INT: "INT",
    column_types.BIGINT: "BIGINT",
    column_types.MEDIUMINT: "MEDIUMINT",
}
_TIME_TYPES = {
    column_types.TIMESTAMP: "TIMESTAMP",
    column_types.TIME: "TIME",
    column_types.DATETIME: "DATETIME",
}
_LONG_TYPES = {
    column_types.TINYTEXT: ("TINYTEXT", "TINYBLOB"),
    column_types.MEDIUMTEXT: ("MEDIUMTEXT", "MEDIUMBLOB"),
    column_types.LONGTEXT: ("LONGTEXT", "LONGBLOB"),
    column_types.TEXT: ("TEXT", "BLOB"),
}
_FOREIGN_KEY_ACTIONS = {
    1: "RESTRICT",
    2: "CASCADE",
    3: "SET NULL",
    4: "NO ACTION",
    5: "SET DEFAULT",
}
_VIEW_ALGORITHMS = {0: "UNDEFINED", 1: "MERGE", 2: "TEMPTABLE"}


def column_type(column: Column) -> str:
    """Return the SQL type, without character set."""
    tp, flen, decimal = column.tp, column.flen, column.decimal
    sign = (" UNSIGNED" if column.unsigned else "") + (
        " ZEROFILL" if column.flag & column_types.FLAG_ZEROFILL else ""
    )
    if tp in _INTEGER_TYPES:
        return f"{_INTEGER_TYPES[tp]}{f'({flen})' if flen > 0 else ''}{sign}"
    if tp in (column_types.FLOAT, column_types.DOUBLE):
        digits = f"({flen},{decimal})" if flen > 0 and decimal >= 0 else ""
        return f"{'FLOAT' if tp == column_types.FLOAT else 'DOUBLE'}{digits}{sign}"
    if tp == column_types.DECIMAL:
        return f"DECIMAL({flen if flen > 0 else 10},{max(decimal, 0)}){sign}"
    if tp in _TIME_TYPES:
        return f"{_TIME_TYPES[tp]}{f'({column.fsp})' if column.fsp else ''}"
    if tp in (column_types.DATE, column_types.NEWDATE):
        return "DATE"
    if tp == column_types.YEAR:
        return "YEAR"
    if tp == column_types.BIT:
        return f"BIT({max(flen, 1)})"
    if tp == column_types.JSON:
        return "JSON"
    if tp in (column_types.ENUM, column_types.SET):
        return element_type(column)
    if tp in _LONG_TYPES:
        return _LONG_TYPES[tp][column.kind == "binary"]
    if tp in column_types.VARYING:
        return f"{'VARBINARY' if column.kind == 'binary' else 'VARCHAR'}({max(flen, 0)})"
    if tp == column_types.CHAR:
        return f"{'BINARY' if column.kind == 'binary' else 'CHAR'}({max(flen, 0)})"
    return f"/* unknown type {tp} */ LONGBLOB"


def column_definition(column: Column, dialect: Dialect) -> str:
    """Return ``name type ...`` as in CREATE TABLE and ALTER TABLE ... MODIFY."""
    parts = [quote_name(column.name), column_type(column)]
    if column.has_blank_ends:
        parts.append("CHARACTER SET binary")  # in others the server cuts the blanks off
    elif column.kind in ("text", "enum", "set") and column.charset:
        parts.append(
            f"CHARACTER SET {charset_name(column.charset)} COLLATE"
            f" {collation_name(column.collate, dialect)}"
        )
    if column.generated and not column.marks_deletes:
        # What a rule adds is in no row of the upstream's, as a virtual column. It is stored:
        # a value that can't be computed is an error where a row is written, not where it is read.
        is_stored = column.generated_stored or bool(column.computed)
        parts.append(
            f"GENERATED ALWAYS AS ({column.generated}) {'STORED' if is_stored else 'VIRTUAL'}"
        )
    else:
        parts.append("NOT NULL" if column.not_null else "NULL")
        default = _default_clause(column)
        if default:
            parts.append(f"DEFAULT {default}")
        if column.flag & column_types.FLAG_ON_UPDATE_NOW:
            parts.append(f"ON UPDATE CURRENT_TIMESTAMP{f'({column.fsp})' if column.fsp else ''}")
        if column.flag & column_types.FLAG_AUTO_INCREMENT:
            parts.append("AUTO_INCREMENT")
    if column.comment:
        parts.append(f"COMMENT {quote_text(fit_comment(column.comment, MAX_COLUMN_COMMENT_CHARS))}")
    return " ".join(parts)


def _default_clause(column: Column) -> str:
    value = column.default
    if value is None:
        plain = (
            column.not_null
            or column.flag & column_types.FLAG_AUTO_INCREMENT
            or column.tp in _LONG_TYPES
            or column.kind == "json"
        )
        return "" if plain else "NULL"
    if column.default_expression:
        return f"({column.default_expression})"
    if column.kind == "bit":
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        return f"b'{int.from_bytes(raw, 'big'):b}'"
    raw = value.encode() if isinstance(value, str) else value
    if column.kind == "binary" and 0 < column.flen < len(raw):
        # TiDB keeps bytes that are no UTF-8 as U+FFFD, which are more than there were. It can't
        # insert by such a default itself.
        return f"x'{raw[: column.flen].hex()}'"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if column.kind in ("timestamp", "datetime") and value.upper().startswith("CURRENT_TIMESTAMP"):
        return f"CURRENT_TIMESTAMP{f'({column.fsp})' if column.fsp else ''}"
    return quote_text(value)


def table_options(table: Table, dialect: Dialect) -> str:
    """Return ``DEFAULT CHARACTER SET ... COLLATE ...``."""
    if not table.charset:
        return ""
    return (
        f"DEFAULT CHARACTER SET {charset_name(table.charset)} COLLATE"
        f" {collation_name(table.collate, dialect)}"
    )


def index_definition(table: Table, index: Index, dialect: Dialect) -> tuple[list[str], list[str]]:
    """Return (definitions as in CREATE TABLE or after ADD, what had to be changed about it).

    No definition: it must be left out. A unique index of which the server keeps hashes has an
    ordinary one beside it, by which rows are found.
    """
    title = f"index {index.name} of {table.full_name}"
    by_name = {column.name: column for column in table.columns}
    columns = [by_name.get(name) for name, _, _ in index.columns]
    if any(column is None or column.hidden for column in columns):
        return [], [f"{title} is on an expression: left out"]
    if unfit_name(index):
        return [], [f"{title} has a name that the server doesn't take: left out"]
    fit = fit_index(table, index, dialect)
    if fit is None:
        return [], [f"{title} is longer than the downstream allows: left out"]
    warnings = [] if fit == index else [f"{title} is longer than the downstream allows: shortened"]
    keys = _index_columns(fit.columns)
    hashed = (
        fit.unique and dialect.hashes_long_keys and shortened_columns(table, fit) != fit.columns
    )
    beside = [f"KEY ({_index_columns(shortened_columns(table, fit))})"] if hashed else []
    if index.primary:
        what = ""
        if not dialect.generated_primary_keys and any(
            column is not None and column.generated for column in columns
        ):
            what = "is on a generated column"
        elif hashed:
            what = "is longer than the downstream allows"
        if what:
            return [f"UNIQUE KEY ({keys})", *beside], [
                f"the primary key of {table.full_name} {what}: a unique key instead"
            ]
        return [f"PRIMARY KEY ({keys})"], []
    comment = (
        f" COMMENT {quote_text(fit_comment(index.comment, MAX_INDEX_COMMENT_CHARS))}"
        if index.comment
        else ""
    )
    warnings += comment_warning(title, index.comment, MAX_INDEX_COMMENT_CHARS)
    hidden = f" {dialect.index_visibility[1]}" if index.invisible else ""
    one = (
        f"{'UNIQUE ' if index.unique else ''}KEY {quote_name(index.name)} ({keys}){comment}{hidden}"
    )
    return [one, *beside], warnings


def _index_definitions(table: Table, dialect: Dialect, room: int) -> tuple[list[str], list[str]]:
    """Return the definitions of all indexes in the table's order.

    Unique ones come first where there is no room for all.
    """
    made: dict[int, list[str]] = {}
    warnings = []
    public = [index for index in table.indexes if index.state == STATE_PUBLIC]
    for index in sorted(public, key=lambda one: not (one.unique or one.primary)):
        definitions, changed = index_definition(table, index, dialect)
        if len(definitions) > room:
            definitions, changed = [], [too_many_indexes(table, index)]
        room -= len(definitions)
        made[index.id] = definitions
        warnings += changed
    return [definition for index in public for definition in made[index.id]], warnings


def _index_columns(columns: Sequence[tuple[str, int, int]]) -> str:
    return ", ".join(
        f"{quote_name(name)}{f'({length})' if length > 0 else ''}" for name, _, length in columns
    )


def create_table(table: Table, dialect: Dialect) -> tuple[str, list[str]]:
    """Return (CREATE TABLE statement, what was left out or changed)."""
    warnings = []
    lines = [
        column_definition(column, dialect)
        for column in table.columns
        if column.public and not column.hidden
    ]
    handle = table.handle_column
    if handle is not None and table.primary_index is None:
        if not dialect.generated_primary_keys and handle.generated:
            lines.append(f"UNIQUE KEY ({quote_name(handle.name)})")
            warnings.append(
                f"the primary key of {table.full_name} is on a generated column: a unique key"
                " instead"
            )
        else:
            lines.append(f"PRIMARY KEY ({quote_name(handle.name)})")
    definitions, changed = _index_definitions(table, dialect, room=MAX_INDEXES - bool(handle))
    lines += definitions
    warnings += changed
    warnings += [
        f"column {column.name} of {table.full_name} has the character set binary: its elements end"
        " with blanks, which servers cut off in others"
        for column in table.columns
        if column.public and column.has_blank_ends
    ]
    lines += [foreign_key_definition(key) for key in table.foreign_keys]
    comment = (
        f" COMMENT={quote_text(fit_comment(table.comment, MAX_TABLE_COMMENT_CHARS))}"
        if table.comment
        else ""
    )
    warnings += comment_warning(table.full_name, table.comment, MAX_TABLE_COMMENT_CHARS)
    for column in (c for c in table.columns if c.public and not c.hidden):
        warnings += column_comment_warning(table, column)
    counter = f" AUTO_INCREMENT={table.auto_increment}" if table.auto_increment else ""
    options = (
        f"ENGINE=InnoDB{dialect.row_format}"
        f" {table_options(table, dialect)}{comment}{counter}{partition_clause(table)}"
    )
    return f"CREATE TABLE {quote_table(table)} ({', '.join(lines)}) {options}", warnings


def too_many_indexes(table: Table, index: Index) -> str:
    """Return the warning for an index beyond the most that servers have."""
    return f"index {index.name} of {table.full_name} left out: the server has at most {MAX_INDEXES}"


def column_comment_warning(table: Table, column: Column) -> list[str]:
    """Return what of a column's comment the server doesn't take, as a warning or none."""
    return comment_warning(
        f"column {column.name} of {table.full_name}", column.comment, MAX_COLUMN_COMMENT_CHARS
    )


def foreign_key_definition(key: Mapping[str, Any]) -> str:
    """Return ``CONSTRAINT name FOREIGN KEY ...`` from TiDB's FKInfo."""
    columns, referred = (
        ", ".join(quote_name(plain_name(c)) for c in key.get(part) or ())
        for part in ("cols", "ref_cols")
    )
    target = quote_name(plain_name(key["ref_table"]))
    if plain_name(key.get("ref_schema") or ""):
        target = f"{quote_name(plain_name(key['ref_schema']))}.{target}"
    actions = "".join(
        f" ON {event} {_FOREIGN_KEY_ACTIONS[int(key.get(part) or 0)]}"
        for event, part in (("DELETE", "on_delete"), ("UPDATE", "on_update"))
        if int(key.get(part) or 0) in _FOREIGN_KEY_ACTIONS
    )
    return (
        f"CONSTRAINT {quote_name(plain_name(key['fk_name']))} FOREIGN KEY ({columns}) REFERENCES"
        f" {target} ({referred}){actions}"
    )


def create_view(table: Table) -> str:
    """Return the CREATE OR REPLACE VIEW statement.

    TiDB keeps the query with every table's full name, so it means the same in every session. Always
    with the rights of the reader: the definer is Sluice's user, which may read everything.
    """
    info: dict[str, Any] = table.view or {}
    columns = ", ".join(quote_name(column.name) for column in table.columns)
    algorithm = _VIEW_ALGORITHMS.get(int(info.get("view_algorithm") or 0), "UNDEFINED")
    return (
        f"CREATE OR REPLACE ALGORITHM={algorithm} DEFINER=CURRENT_USER SQL SECURITY INVOKER VIEW"
        f" {quote_table(table)}{f' ({columns})' if columns else ''} AS {info['view_select']}"
    )


def sequence_statement(verb: str, table: Table) -> str:
    """Return the CREATE or ALTER SEQUENCE statement."""
    info: dict[str, Any] = table.sequence or {}
    cache = f"CACHE {info['sequence_cache_value']}" if info.get("sequence_cache") else "NOCACHE"
    return (
        f"{verb} SEQUENCE {quote_table(table)} START WITH {info['sequence_start']} MINVALUE"
        f" {info['sequence_min_value']} MAXVALUE {info['sequence_max_value']} INCREMENT BY"
        f" {info['sequence_increment']} {cache}"
        f" {'CYCLE' if info.get('sequence_cycle') else 'NOCYCLE'}"
    )
