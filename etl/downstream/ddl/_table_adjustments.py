"""Adjust tables to rows that they could not hold: columns to bytes, unique keys to twins.

TiDB accepts bytes that are no text where it doesn't check; MariaDB and MySQL don't. They also cut
off the blanks that elements of ENUM and SET end with, unless the character set is binary.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.steps import DroppedUniqueIndex, HoldAsBytes, Step
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.tidb.folded import folded

_UTF8_CHARSETS = {"utf8mb4", "utf8mb3", "utf8", "ascii"}
_MAX_INLINE_BYTES = 16_383 * 4
_BLOBS = {
    "tinytext": "TINYBLOB",
    "text": "BLOB",
    "mediumtext": "MEDIUMBLOB",
    "longtext": "LONGBLOB",
}


def hold_as_bytes(session: MySQLSession, step: Step) -> list[str]:
    """Make the columns that a `bytes` step names columns of bytes; return warnings.

    Columns that hold bytes already, or text in which the server allows any byte, stay. Commits
    what is open. Raises DownstreamError.
    """
    if session.dialect.is_tidb:
        return []
    detail = step.detail_of(HoldAsBytes)
    wanted = {folded(name) for name in detail.columns}
    rows = session.query(
        "SELECT COLUMN_NAME, DATA_TYPE, CHARACTER_SET_NAME, CHARACTER_OCTET_LENGTH, IS_NULLABLE"
        " FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND"
        " CHARACTER_SET_NAME IS NOT NULL",
        (step.schema, step.table),
    )
    target = f"{quote_name(step.schema)}.{quote_name(step.table)}"
    warnings = []
    for name, kind, charset, octets, nullable in rows:
        if folded(str(name)) not in wanted:
            continue
        column, null = quote_name(str(name)), "NULL" if nullable == "YES" else "NOT NULL"
        text = str(kind).lower()
        # what is in it has to become the upstream's utf-8 first
        if str(charset).lower() not in _UTF8_CHARSETS:
            length = f"({int(octets)})" if text in ("varchar", "char") else ""
            session.execute(
                f"ALTER TABLE {target} MODIFY COLUMN {column}"
                f" {'VARCHAR' if length else text}{length} CHARACTER SET utf8mb4 {null}"
            )
        size = int(octets) * (1 if str(charset).lower() in ("utf8mb4", "ascii") else 4)
        form = _BLOBS.get(text) or (f"VARBINARY({size})" if size <= _MAX_INLINE_BYTES else "BLOB")
        session.execute(f"ALTER TABLE {target} MODIFY COLUMN {column} {form} {null}")
        warnings.append(
            f"{step.full_name}: the column {name} holds bytes from here on ({form}): by commit_ts"
            f" {detail.last_ts} the upstream has values in it that are no UTF-8, and text can't"
            " hold them"
        )
    return warnings


def repair_blank_ends(session: MySQLSession, schema: str, table: str, types: Sequence[str]) -> str:
    """Return the ALTER TABLE statements that give columns their elements back, "" if none needs it.

    `types`: each column's quoted name and type
    (`sluice.etl.changes.formats.ddl_text.blank_ended_columns`). Raises DownstreamError.
    """
    if not types:
        return ""
    rows = session.query(
        "SELECT COLUMN_NAME, IS_NULLABLE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s"
        " AND TABLE_NAME = %s AND DATA_TYPE IN ('enum', 'set') AND (CHARACTER_SET_NAME <> 'binary'"
        " OR %s)",
        # a TiDB cuts them off whatever the character set is
        (schema, table, session.dialect.is_tidb),
    )
    wanted = {folded(text): text for text in types}
    first, then = [], []
    for name, nullable in rows:
        quoted, null = quote_name(str(name)), "" if nullable == "YES" else " NOT NULL"
        text = next(
            (full for low, full in wanted.items() if low.startswith(f"{folded(quoted)} ")), None
        )
        if text is None:
            continue
        if session.dialect.is_tidb:
            first.append(
                f"MODIFY COLUMN {quoted} VARCHAR({len(text)}) CHARACTER SET utf8mb4 COLLATE"
                f" utf8mb4_bin{null}"
            )
            continue
        # a value stays what it is by its number
        first.append(f"MODIFY COLUMN {quoted} BIGINT UNSIGNED{null}")
        then.append(f"MODIFY COLUMN {text} CHARACTER SET binary{null}")
    target = f"{quote_name(schema)}.{quote_name(table)}"
    return "; ".join(
        f"ALTER TABLE {target} {', '.join(changes)}" for changes in (first, then) if changes
    )


def drop_uniqueness(
    session: MySQLSession, schema: str, table: str, indexes: Sequence[DroppedUniqueIndex]
) -> list[str]:
    """Let these indexes have values twice; the names of those that didn't yet.

    Commits. A primary key goes, any other index stays under its name, so that the DDL finds it. May
    be repeated. Raises DownstreamError.
    """
    rows = session.query(
        "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND"
        " TABLE_NAME = %s AND NON_UNIQUE = 0",
        (schema, table),
    )
    unique = {folded(str(name)) for (name,) in rows}
    wanted = [index for index in indexes if folded(index.name) in unique]
    alter = f"ALTER TABLE {quote_name(schema)}.{quote_name(table)}"
    for index in wanted:
        if index.name == "PRIMARY":
            session.execute(f"{alter} DROP PRIMARY KEY")
            continue
        name = quote_name(index.name)
        columns = ", ".join(
            f"{quote_name(column)}{f'({length})' if length > 0 else ''}"
            for column, length in index.columns
        )
        # apart: TiDB takes no two changes of one index in a statement
        session.execute(f"{alter} DROP INDEX {name}")
        try:
            session.execute(f"{alter} ADD INDEX {name} ({columns})")
        except DownstreamError as error:
            if error.code not in server_errors.TOO_LONG:
                raise
            # Of a unique index the server kept hashes; without one the DDL finds nothing to drop.
    return [index.name for index in wanted]
