"""CREATE TABLE and column definitions from a table's description, for statements the downstream doesn't take as they are."""

from __future__ import annotations

from typing import Any

from etl._ddl_text import collation_name
from etl._sql_text import quote_name, quote_string, quote_table
from upstream.schema import STATE_PUBLIC, Column, Index, Table

_FLAG_ZEROFILL, _FLAG_AUTO_INCREMENT, _FLAG_ON_UPDATE_NOW = 64, 512, 8192
_INTEGER = {1: "TINYINT", 2: "SMALLINT", 3: "INT", 8: "BIGINT", 9: "MEDIUMINT"}
_LONG = {0xF9: ("TINYTEXT", "TINYBLOB"), 0xFA: ("MEDIUMTEXT", "MEDIUMBLOB"), 0xFB: ("LONGTEXT", "LONGBLOB"), 0xFC: ("TEXT", "BLOB")}
_PARTITION = {1: "RANGE", 2: "HASH", 3: "LIST", 4: "KEY"}


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
        return f"{'ENUM' if tp == 0xF7 else 'SET'}({','.join(quote_string(e) for e in column.elems)})"
    if tp in _LONG:
        return _LONG[tp][column.kind == "binary"]
    if tp in (15, 0xFD):
        return f"{'VARBINARY' if column.kind == 'binary' else 'VARCHAR'}({max(flen, 0)})"
    if tp == 0xFE:
        return f"{'BINARY' if column.kind == 'binary' else 'CHAR'}({max(flen, 0)})"
    return f"/* unknown type {tp} */ LONGBLOB"


def column_definition(column: Column, mariadb: bool) -> str:
    """``name type ...`` as in CREATE TABLE and ALTER TABLE ... MODIFY."""
    parts = [quote_name(column.name), column_type(column)]
    if column.kind in ("text", "enum", "set") and column.charset:
        parts.append(f"CHARACTER SET {column.charset} COLLATE {collation_name(column.collate, mariadb)}")
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
        parts.append(f"COMMENT {quote_string(column.comment)}")
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
    return quote_string(value)


def table_options(table: Table, mariadb: bool) -> str:
    """``DEFAULT CHARACTER SET ... COLLATE ...``"""
    if not table.charset:
        return ""
    return f"DEFAULT CHARACTER SET {table.charset} COLLATE {collation_name(table.collate, mariadb)}"


def index_definition(table: Table, index: Index, mariadb: bool) -> tuple[str, str]:
    """(definition as in CREATE TABLE or after ADD, what had to be changed about it). No definition: it must be left out."""
    by_name = {column.name: column for column in table.columns}
    columns = [by_name.get(name) for name, _, _ in index.columns]
    if any(column is None or column.hidden for column in columns):
        return "", f"index {index.name} of {table.full_name} is on an expression: left out"
    keys = ", ".join(
        f"{quote_name(name)}{f'({length})' if length > 0 else ''}" for name, _, length in index.columns
    )
    if index.primary:
        if mariadb and any(column is not None and column.generated for column in columns):
            return f"UNIQUE KEY ({keys})", f"the primary key of {table.full_name} is on a generated column: a unique key instead"
        return f"PRIMARY KEY ({keys})", ""
    comment = f" COMMENT {quote_string(index.comment)}" if index.comment else ""
    return f"{'UNIQUE ' if index.unique else ''}KEY {quote_name(index.name)} ({keys}){comment}", ""


def create_table(table: Table, mariadb: bool, partitions: bool = True) -> tuple[str, list[str]]:
    """(CREATE TABLE statement, what was left out or changed)."""
    warnings = []
    lines = [column_definition(column, mariadb) for column in table.columns if column.public and not column.hidden]
    handle = table.handle_column
    if handle is not None and table.primary_index is None:
        if mariadb and handle.generated:
            lines.append(f"UNIQUE KEY ({quote_name(handle.name)})")
            warnings.append(f"the primary key of {table.full_name} is on a generated column: a unique key instead")
        else:
            lines.append(f"PRIMARY KEY ({quote_name(handle.name)})")
    for index in table.indexes:
        if index.state == STATE_PUBLIC:
            definition, warning = index_definition(table, index, mariadb)
            lines += [definition] if definition else []
            warnings += [warning] if warning else []
    comment = f" COMMENT={quote_string(table.comment)}" if table.comment else ""
    partition = partition_clause(table) if partitions else ""
    statement = f"CREATE TABLE {quote_table(table)} ({', '.join(lines)}) {table_options(table, mariadb)}{comment}{partition}"
    if table.partition and table.partition.get("enable", True) and not partition:
        warnings.append(f"{table.full_name} is created without its partitions")
    return statement, warnings


def partition_clause(table: Table) -> str:
    """`` PARTITION BY ...`` or nothing."""
    info: dict[str, Any] = table.partition or {}
    kind = _PARTITION.get(int(info.get("type") or 0))
    if kind is None or not info.get("enable", True):
        return ""
    columns = [c["O"] if isinstance(c, dict) else str(c) for c in info.get("columns") or ()]
    by = ", ".join(quote_name(c) for c in columns) if columns else str(info.get("expr") or "")
    if kind in ("HASH", "KEY"):
        return f" PARTITION BY {kind} ({by}) PARTITIONS {int(info.get('num') or len(info.get('definitions') or ()) or 1)}"
    definitions = []
    for definition in info.get("definitions") or ():
        name = definition["name"]["O"] if isinstance(definition["name"], dict) else definition["name"]
        if kind == "RANGE":
            bound = ", ".join(definition.get("less_than") or ())
            values = f"LESS THAN {'MAXVALUE' if bound.upper() == 'MAXVALUE' and not columns else f'({bound})'}"
        else:
            rows = [", ".join(row) for row in definition.get("in_values") or ()]
            values = f"IN ({', '.join(f'({row})' if len(columns) > 1 else row for row in rows)})"
        definitions.append(f"PARTITION {quote_name(name)} VALUES {values}")
    return f" PARTITION BY {kind}{' COLUMNS' if columns else ''} ({by}) ({', '.join(definitions)})"
