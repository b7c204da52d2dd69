"""ENUM and SET columns from which the server has cut the blanks that elements end with."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.downstream import MySQLSession
from sluice.tidb.folded import folded


def repair_blank_ends(session: MySQLSession, schema: str, table: str, types: Sequence[str]) -> str:
    """Return the ALTER TABLE statements that give such columns their elements back, "" if none lacks them. `types`:
    each column's quoted name and type (`sluice.etl.changes.formats.ddl_text.blank_ended_columns`). Raises
    DownstreamError.
    """
    if not types:
        return ""
    rows = session.query(
        "SELECT COLUMN_NAME, IS_NULLABLE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        " AND DATA_TYPE IN ('enum', 'set') AND (CHARACTER_SET_NAME <> 'binary' OR %s)",
        (schema, table, session.dialect.is_tidb),  # a TiDB cuts them off whatever the character set is
    )
    wanted = {folded(text): text for text in types}
    first, then = [], []
    for name, nullable in rows:
        quoted, null = quote_name(str(name)), "" if nullable == "YES" else " NOT NULL"
        text = next((full for low, full in wanted.items() if low.startswith(f"{folded(quoted)} ")), None)
        if text is None:
            continue
        if session.dialect.is_tidb:
            first.append(f"MODIFY COLUMN {quoted} VARCHAR({len(text)}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin{null}")
            continue
        first.append(f"MODIFY COLUMN {quoted} BIGINT UNSIGNED{null}")  # a value stays what it is by its number
        then.append(f"MODIFY COLUMN {text} CHARACTER SET binary{null}")
    target = f"{quote_name(schema)}.{quote_name(table)}"
    return "; ".join(f"ALTER TABLE {target} {', '.join(changes)}" for changes in (first, then) if changes)
