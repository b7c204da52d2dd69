"""CREATE TABLE and column definitions from a table's description, for statements the downstream doesn't take as they are.

Like TiDB's own text they are for a session with NO_BACKSLASH_ESCAPES: in strings only the quote is doubled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from etl._ddl_text import charset_name, collation_name
from etl._sql_text import quote_name, quote_table
from etl.dialect import Dialect
from upstream.schema import STATE_PUBLIC, Column, Index, Table

_FLAG_ZEROFILL, _FLAG_AUTO_INCREMENT, _FLAG_ON_UPDATE_NOW = 64, 512, 8192
_INTEGER = {1: "TINYINT", 2: "SMALLINT", 3: "INT", 8: "BIGINT", 9: "MEDIUMINT"}
_LONG = {0xF9: ("TINYTEXT", "TINYBLOB"), 0xFA: ("MEDIUMTEXT", "MEDIUMBLOB"), 0xFB: ("LONGTEXT", "LONGBLOB"), 0xFC: ("TEXT", "BLOB")}
_LONGEST_KEY = 768  # characters of utf8mb4 in 3072 bytes
_WIDE_FROM = 64  # characters; shorter ones aren't worth turning into TEXT
_PARTITION = {1: "RANGE", 2: "HASH", 3: "LIST", 4: "KEY"}


def quote_text(text: str) -> str:
    """`text` as a string literal for a session without backslash escapes."""
    return "'" + text.replace("'", "''") + "'"


def column_type(column: Column) -> str:
    """The SQL type, without character set."""
    tp, flen, decimal = column.tp, column.flen, column.decimal
    sign = (" UNSIGNED" if column.unsigned else "") + (" ZEROFILL" if column.flag & _FLAG_ZEROFILL else "")
    if tp in _INTEGER:
        return f"{_INTEGER[tp]}{f'({flen})' if flen > 0 else ''}{sign}"
    if tp in (4, 5):
        return f"{'FLOAT' if tp == 4 else 'DOUBLE'}{f'({flen},{decimal})' if flen > 0 and decimal >= 0 else ''}{sign}"
    if tp == 0xF6:
        return f"DECIMAL({flen if flen > 0 else 10},{max(decimal, 0)}){sign}"
    if tp in (7, 11, 12):
        return f"{ {7: 'TIMESTAMP', 11: 'TIME', 12: 'DATETIME'}[tp]}{f'({column.fsp})' if column.fsp else ''}"
    if tp in (10, 14):
        return "DATE"
    if tp == 13:
        return "YEAR"
    if tp == 16:
        return f"BIT({max(flen, 1)})"
    if tp == 0xF5:
        return "JSON"
    if tp in (0xF7, 0xF8):
        return f"{'ENUM' if tp == 0xF7 else 'SET'}({','.join(quote_text(e) for e in column.elems)})"
    if tp in _LONG:
        return _LONG[tp][column.kind == "binary"]
    if tp in (15, 0xFD):
        return f"{'VARBINARY' if column.kind == 'binary' else 'VARCHAR'}({max(flen, 0)})"
    if tp == 0xFE:
        return f"{'BINARY' if column.kind == 'binary' else 'CHAR'}({max(flen, 0)})"
    return f"/* unknown type {tp} */ LONGBLOB"


def widened(table: Table) -> Table:
    """The table with its longer VARCHARs and VARBINARYs that are in no index as TEXT and BLOB, for servers that limit the sum of
    all columns' lengths (65,535 bytes; TiDB has no such limit). What they hold and how it compares is the same."""
    bound = {name.lower() for index in table.indexes for name, _, _ in index.columns}
    partition = table.partition or {}
    bound |= {_cistr(c).lower() for c in partition.get("columns") or ()}
    expression = str(partition.get("expr") or "").lower()

    def widen(column: Column) -> Column:
        if column.tp not in (15, 0xFD) or column.flen < _WIDE_FROM or column.name.lower() in bound or f"`{column.name.lower()}`" in expression:
            return column
        size = column.flen * (1 if column.kind == "binary" else 4)
        return replace(column, tp=0xFC if size <= 65_535 else 0xFA, flen=-1)

    return replace(table, columns=tuple(widen(column) for column in table.columns))


def plain(table: Table) -> Table:
    """The table without what only matters to those who write by themselves: defaults that are expressions, AUTO_INCREMENT."""
    return replace(
        table,
        columns=tuple(
            replace(
                column, default=None if column.default_is_expr else column.default, default_is_expr=False, flag=column.flag & ~_FLAG_AUTO_INCREMENT
            )
            for column in table.columns
        ),
    )  # fmt: skip


def column_definition(column: Column, dialect: Dialect) -> str:
    """``name type ...`` as in CREATE TABLE and ALTER TABLE ... MODIFY."""
    parts = [quote_name(column.name), column_type(column)]
    if column.kind in ("text", "enum", "set") and column.charset:
        parts.append(f"CHARACTER SET {charset_name(column.charset)} COLLATE {collation_name(column.collate, dialect)}")
    if column.generated:
        parts.append(f"GENERATED ALWAYS AS ({column.generated}) {'STORED' if column.generated_stored else 'VIRTUAL'}")
    else:
        parts.append("NOT NULL" if column.not_null else "NULL")
        default = _default(column)
        if default:
            parts.append(f"DEFAULT {default}")
        if column.flag & _FLAG_ON_UPDATE_NOW:
            parts.append(f"ON UPDATE CURRENT_TIMESTAMP{f'({column.fsp})' if column.fsp else ''}")
        if column.flag & _FLAG_AUTO_INCREMENT:
            parts.append("AUTO_INCREMENT")
    if column.comment:
        parts.append(f"COMMENT {quote_text(column.comment)}")
    return " ".join(parts)


def _default(column: Column) -> str:
    value = column.default
    if value is None:
        plain = column.not_null or column.flag & _FLAG_AUTO_INCREMENT or column.tp in _LONG or column.kind == "json"
        return "" if plain else "NULL"
    if column.default_is_expr:
        return f"({value if isinstance(value, str) else value.decode()})"
    if column.kind == "bit":
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        return f"b'{int.from_bytes(raw, 'big'):b}'"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if column.kind in ("timestamp", "datetime") and value.upper().startswith("CURRENT_TIMESTAMP"):
        return f"CURRENT_TIMESTAMP{f'({column.fsp})' if column.fsp else ''}"
    return quote_text(value)


def table_options(table: Table, dialect: Dialect) -> str:
    """``DEFAULT CHARACTER SET ... COLLATE ...``"""
    if not table.charset:
        return ""
    return f"DEFAULT CHARACTER SET {charset_name(table.charset)} COLLATE {collation_name(table.collate, dialect)}"


def index_definition(table: Table, index: Index, dialect: Dialect) -> tuple[str, str]:
    """(definition as in CREATE TABLE or after ADD, what had to be changed about it). No definition: it must be left out."""
    by_name = {column.name: column for column in table.columns}
    columns = [by_name.get(name) for name, _, _ in index.columns]
    if any(column is None or column.hidden for column in columns):
        return "", f"index {index.name} of {table.full_name} is on an expression: left out"
    # A latin1 or ascii column has four times the bytes as utf8mb4, more than a key may have.
    long = {c.name for c in columns if c and c.tp in (15, 0xFD) and c.charset in ("latin1", "ascii") and c.flen > _LONGEST_KEY}
    if index.unique and any(name in long and length < 0 for name, _, length in index.columns):
        return "", f"index {index.name} of {table.full_name} is longer than the downstream allows: left out"
    lengths = [_LONGEST_KEY if name in long and not 0 < length <= _LONGEST_KEY else length for name, _, length in index.columns]
    keys = ", ".join(
        f"{quote_name(name)}{f'({length})' if length > 0 else ''}" for (name, _, _), length in zip(index.columns, lengths, strict=True)
    )
    if index.primary:
        if not dialect.generated_primary_keys and any(column is not None and column.generated for column in columns):
            return f"UNIQUE KEY ({keys})", f"the primary key of {table.full_name} is on a generated column: a unique key instead"
        return f"PRIMARY KEY ({keys})", ""
    comment = f" COMMENT {quote_text(index.comment)}" if index.comment else ""
    return f"{'UNIQUE ' if index.unique else ''}KEY {quote_name(index.name)} ({keys}){comment}", ""


def create_table(table: Table, dialect: Dialect, partitions: bool = True) -> tuple[str, list[str]]:
    """(CREATE TABLE statement, what was left out or changed)."""
    warnings = []
    lines = [column_definition(column, dialect) for column in table.columns if column.public and not column.hidden]
    handle = table.handle_column
    if handle is not None and table.primary_index is None:
        if not dialect.generated_primary_keys and handle.generated:
            lines.append(f"UNIQUE KEY ({quote_name(handle.name)})")
            warnings.append(f"the primary key of {table.full_name} is on a generated column: a unique key instead")
        else:
            lines.append(f"PRIMARY KEY ({quote_name(handle.name)})")
    for index in table.indexes:
        if index.state == STATE_PUBLIC:
            definition, warning = index_definition(table, index, dialect)
            lines += [definition] if definition else []
            warnings += [warning] if warning else []
    comment = f" COMMENT={quote_text(table.comment)}" if table.comment else ""
    partition = partition_clause(table) if partitions else ""
    statement = f"CREATE TABLE {quote_table(table)} ({', '.join(lines)}) {table_options(table, dialect)}{comment}{partition}"
    if table.partition and table.partition.get("enable", True) and not partition:
        warnings.append(f"{table.full_name} is created without its partitions")
    return statement, warnings


def partition_clause(table: Table) -> str:
    """`` PARTITION BY ...`` or nothing."""
    info: dict[str, Any] = table.partition or {}
    kind = _PARTITION.get(int(info.get("type") or 0))
    if kind is None or not info.get("enable", True):
        return ""
    columns = [_cistr(c) for c in info.get("columns") or ()]
    by = ", ".join(quote_name(c) for c in columns) if columns else str(info.get("expr") or "")
    if kind in ("HASH", "KEY"):
        return f" PARTITION BY {kind} ({by}) PARTITIONS {int(info.get('num') or len(info.get('definitions') or ()) or 1)}"
    definitions = ", ".join(partition_definition(info, definition) for definition in info.get("definitions") or ())
    return f" PARTITION BY {kind}{' COLUMNS' if columns else ''} ({by}) ({definitions})"


def bounds_depend_on_zone(table: Table) -> bool:
    """Whether partition bounds in a statement are UNIX_TIMESTAMPs of the upstream session; the table's description has numbers."""
    return "unix_timestamp" in str((table.partition or {}).get("expr") or "").lower()


def partition_definition(info: dict[str, Any], definition: dict[str, Any]) -> str:
    """``PARTITION name VALUES ...`` of one RANGE or LIST partition of `info` (TiDB's PartitionInfo)."""
    columns = info.get("columns") or ()
    if _PARTITION.get(int(info.get("type") or 0)) == "RANGE":
        bound = ", ".join(definition.get("less_than") or ())
        values = f"LESS THAN {'MAXVALUE' if bound.upper() == 'MAXVALUE' and not columns else f'({bound})'}"
    else:
        rows = [", ".join(row) for row in definition.get("in_values") or ()]
        values = f"IN ({', '.join(f'({row})' if len(columns) > 1 else row for row in rows)})"
    return f"PARTITION {quote_name(_cistr(definition['name']))} VALUES {values}"


def partition_change(before: Table, after: Table, truncates: bool) -> str:
    """What makes `before`'s partitions `after`'s, as a clause of ALTER TABLE; "" if they are as they were. TiDB has spellings for it
    that nobody else has (intervals, MERGE FIRST PARTITION). `truncates`: partitions with a new id and their old name are emptied."""
    old, new = ({d["id"]: d for d in (t.partition or {}).get("definitions") or ()} for t in (before, after))
    info = after.partition or {}
    gone = [d for i, d in old.items() if i not in new]
    come = [d for i, d in new.items() if i not in old]
    names = ", ".join(quote_name(_cistr(d["name"])) for d in gone)
    if int(info.get("type") or 0) not in (1, 3) and not truncates:
        count = len(new) - len(old)
        return f"ADD PARTITION PARTITIONS {count}" if count > 0 else f"COALESCE PARTITION {-count}" if count else ""
    if truncates and gone:
        return f"TRUNCATE PARTITION {names}"
    definitions = ", ".join(partition_definition(info, d) for d in come)
    if gone and come:
        return f"REORGANIZE PARTITION {names} INTO ({definitions})"
    return f"DROP PARTITION {names}" if gone else f"ADD PARTITION ({definitions})" if come else ""


def _cistr(name: Any) -> str:
    return str(name["O"]) if isinstance(name, dict) else str(name)
