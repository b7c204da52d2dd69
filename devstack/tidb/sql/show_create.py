"""Write SHOW CREATE TABLE as TiDB 6.6, from TiDB's TableInfo (pingcap/tidb, executor/show.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.tidb import column_types as tp
from sluice.tidb.schema import STATE_PUBLIC, Column, Index, Schema, Table

_TYPES = {
    tp.TINYINT: "tinyint",
    tp.SMALLINT: "smallint",
    tp.INT: "int",
    tp.FLOAT: "float",
    tp.DOUBLE: "double",
    tp.TIMESTAMP: "timestamp",
    tp.BIGINT: "bigint",
    tp.MEDIUMINT: "mediumint",
    tp.DATE: "date",
    tp.TIME: "time",
    tp.DATETIME: "datetime",
    tp.YEAR: "year",
    tp.NEWDATE: "date",
    tp.BIT: "bit",
    tp.JSON: "json",
    tp.DECIMAL: "decimal",
    tp.ENUM: "enum",
    tp.SET: "set",
}
_BLOBS = {tp.TINYTEXT: "tiny", tp.MEDIUMTEXT: "medium", tp.LONGTEXT: "long", tp.TEXT: ""}
_WITH_WIDTH = {tp.TINYINT, tp.SMALLINT, tp.INT, tp.BIGINT, tp.MEDIUMINT, tp.YEAR, tp.BIT}
_HASH, _RANGE, _LIST = 2, 1, 3


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def show_create_database(schema: Schema) -> str:
    """Return what SHOW CREATE DATABASE does."""
    charset = schema.charset or "utf8mb4"
    collate = "" if schema.collate in ("", f"{charset}_bin") else f" COLLATE {schema.collate}"
    return (
        f"CREATE DATABASE {quoted(schema.name)} /*!40100 DEFAULT CHARACTER SET"
        f" {charset}{collate} */"
    )


def show_create_table(table: Table, info: Mapping[str, Any], next_id: int) -> str:
    """Return what SHOW CREATE TABLE does.

    `info`: the TableInfo that `table` was made from. `next_id`: its next AUTO_INCREMENT or
    AUTO_RANDOM, 0 if none was given yet.
    """
    raw = {int(c["id"]): c for c in info.get("cols") or ()}
    lines = [_column(c, table, raw[c.id]) for c in table.columns if c.public and not c.hidden]
    if table.handle_column is not None:
        lines.append(
            f"PRIMARY KEY ({quoted(table.handle_column.name)}) /*T![clustered_index] CLUSTERED */"
        )
    lines += [_index(i, table) for i in table.indexes if i.state == STATE_PUBLIC]
    lines += [
        _foreign_key(key, table)
        for key in table.foreign_keys
        if int(key.get("state") or 0) == STATE_PUBLIC
    ]
    charset, collate = table.charset or "utf8mb4", table.collate or "utf8mb4_bin"
    text = f"CREATE TABLE {quoted(table.name)} (\n  " + ",\n  ".join(lines)
    text += f"\n) ENGINE=InnoDB DEFAULT CHARSET={charset} COLLATE={collate}"
    text += _options(table, info, next_id)
    return text + (_partitions(table.partition) if table.is_partitioned and table.partition else "")


def column_type(column: Column) -> str:
    """Return a column's type in full."""
    kind, binary = column.tp, column.charset == "binary"
    if kind in _BLOBS:
        return _BLOBS[kind] + ("blob" if binary else "text")
    if kind in (*tp.VARYING, tp.CHAR):
        base = ("var" if kind != tp.CHAR else "") + ("binary" if binary else "char")
        return f"{base}({column.flen})"
    name = _TYPES.get(kind, f"type {kind}")
    if kind in (tp.ENUM, tp.SET):
        return f"{name}({','.join(_text(e) for e in column.elems)})"
    if kind in (tp.TIMESTAMP, tp.TIME, tp.DATETIME):
        return f"{name}({column.decimal})" if column.decimal > 0 else name
    if kind in (tp.FLOAT, tp.DOUBLE, tp.DECIMAL) and column.decimal >= 0 and column.flen >= 0:
        name += f"({column.flen},{column.decimal})"
    elif kind in _WITH_WIDTH:
        name += f"({column.flen})" if column.flen >= 0 else ""
    plain = kind in (tp.YEAR, tp.BIT)  # their flags say unsigned, their definitions don't
    return (
        name
        + (" unsigned" if column.unsigned and not plain else "")
        + (" zerofill" if column.flag & tp.FLAG_ZEROFILL and not plain else "")
    )


def _column(column: Column, table: Table, raw: Mapping[str, Any]) -> str:
    text = f"{quoted(column.name)} {column_type(column)}"
    is_text = column.kind in ("text", "enum", "set") and column.charset != "binary"
    if is_text and column.charset != table.charset:
        text += f" CHARACTER SET {column.charset} COLLATE {column.collate}"
    elif is_text and column.collate != table.collate:
        text += f" COLLATE {column.collate}"
    if column.generated:
        stored = "STORED" if column.generated_stored else "VIRTUAL"
        text += f" GENERATED ALWAYS AS ({column.generated}) {stored}"
    if column.flag & tp.FLAG_AUTO_INCREMENT:
        text += " NOT NULL AUTO_INCREMENT"
    else:
        text += " NOT NULL" if column.not_null else ""
        text += _default(column)
        text += _on_update(column)
    if table.auto_random_bits and column.name in table.primary_key:
        bits = table.auto_random_bits
        text += f" /*T![auto_rand] AUTO_RANDOM({bits}) */"
    return text + (f" COMMENT {_text(column.comment)}" if column.comment else "")


def _default(column: Column) -> str:
    if column.generated or column.flag & tp.FLAG_NO_DEFAULT:
        return ""
    value = column.default
    if value is None:
        if column.not_null:
            return ""
        return (" NULL" if column.tp == tp.TIMESTAMP else "") + " DEFAULT NULL"
    if column.tp == tp.BIT:
        raw = value if isinstance(value, bytes) else value.encode()
        return f" DEFAULT b'{int.from_bytes(raw, 'big'):b}'"
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if column.default_is_expr:
        return f" DEFAULT {text}"
    if column.tp in (tp.TIMESTAMP, tp.DATETIME) and text.upper() == "CURRENT_TIMESTAMP":
        return " DEFAULT CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else "")
    return f" DEFAULT {_text(text)}"


def _on_update(column: Column) -> str:
    if not column.flag & tp.FLAG_ON_UPDATE_NOW:
        return ""
    return " ON UPDATE CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else "")


def _index(index: Index, table: Table) -> str:
    parts = []
    for name, offset, length in index.columns:
        column = table.columns[offset]
        part = f"({column.generated})" if column.hidden else quoted(name)
        parts.append(part + (f"({length})" if length >= 0 else ""))
    keys = ",".join(parts)
    if index.primary:
        text = f"PRIMARY KEY ({keys})"
    else:
        text = f"{'UNIQUE ' if index.unique else ''}KEY {quoted(index.name)} ({keys})"
    text += " /*!80000 INVISIBLE */" if index.invisible else ""
    text += f" COMMENT {_text(index.comment)}" if index.comment else ""
    if index.primary:
        text += (
            f" /*T![clustered_index] {'CLUSTERED' if table.is_common_handle else 'NONCLUSTERED'} */"
        )
    return text


def _foreign_key(key: Mapping[str, Any], table: Table) -> str:
    actions = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION"}
    schema = (key.get("ref_schema") or {}).get("O") or table.schema_name
    target = f"{quoted(schema)}.{quoted(key['ref_table']['O'])}"
    columns, referred = (
        ",".join(quoted(c["O"]) for c in key.get(k) or ()) for k in ("cols", "ref_cols")
    )
    text = (
        f"CONSTRAINT {quoted(key['fk_name']['O'])} FOREIGN KEY ({columns}) REFERENCES {target}"
        f" ({referred})"
    )
    for clause, field in (("ON DELETE", "on_delete"), ("ON UPDATE", "on_update")):
        if key.get(field):
            text += f" {clause} {actions[int(key[field])]}"
    return text


def _options(table: Table, info: Mapping[str, Any], next_id: int) -> str:
    text = ""
    first = max(next_id, int(info.get("auto_inc_id") or 0))
    if first > 1 and any(c.flag & tp.FLAG_AUTO_INCREMENT for c in table.columns):
        text += f" AUTO_INCREMENT={first}"
    if info.get("auto_id_cache"):
        text += f" /*T![auto_id_cache] AUTO_ID_CACHE={info['auto_id_cache']} */"
    base = max(next_id, int(info.get("auto_rand_id") or 0))
    if base > 1 and table.auto_random_bits:
        text += f" /*T![auto_rand_base] AUTO_RANDOM_BASE={base} */"
    if info.get("ShardRowIDBits"):
        text += f" /*T! SHARD_ROW_ID_BITS={info['ShardRowIDBits']} */"
    return text + (f" COMMENT={_text(table.comment)}" if table.comment else "")


def _partitions(info: Mapping[str, Any]) -> str:
    columns = ",".join(quoted(c["O"]) for c in info.get("columns") or ())
    definitions = info.get("definitions") or []
    kind = {_RANGE: "RANGE", _HASH: "HASH", _LIST: "LIST"}.get(info["type"], "KEY")
    head = f"\nPARTITION BY {kind} " + (
        f"COLUMNS({columns})" if columns and kind != "KEY" else f"({info['expr']})"
    )
    if kind in ("HASH", "KEY"):
        return f"{head} PARTITIONS {len(definitions)}"
    lines = []
    for definition in definitions:
        if kind == "RANGE":
            bound = f"LESS THAN ({','.join(definition['less_than'])})"
        else:
            items = [v[0] if len(v) == 1 else f"({','.join(v)})" for v in definition["in_values"]]
            bound = f"IN ({','.join(items)})"
        lines.append(f"PARTITION {quoted(definition['name']['O'])} VALUES {bound}")
    return f"{head}\n(" + ",\n ".join(lines) + ")"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"
