"""Name Drainer's mark table, which two clusters that replicate each other recognise writes by.

Each transaction that a replicating process writes changes a row of it, with the process's channel.
The process of the other direction leaves such a transaction out. The table is the original's, so a
Drainer may be on the other side.
"""

from __future__ import annotations

from sluice.tidb.folded import folded

MARK_SCHEMA = "retl"
MARK_TABLE = "_drainer_repl_mark"
MARK_NAME = f"{MARK_SCHEMA}.{MARK_TABLE}"
CHANNEL_COLUMN = "channel_id"
MARK_ROWS = 16
"""Rows that the sessions of a channel share: one alone would make them wait for one another."""
NUDGE_ROW = MARK_ROWS
"""The row of transactions that are there to be landed by the other direction."""

CREATE_MARK_TABLE = (
    f"CREATE DATABASE IF NOT EXISTS {MARK_SCHEMA}",
    f"CREATE TABLE IF NOT EXISTS {MARK_NAME} (id bigint NOT NULL, {CHANNEL_COLUMN} bigint NOT NULL"
    f" DEFAULT 0, val bigint DEFAULT 0, channel_info varchar(64), PRIMARY KEY (id,"
    f" {CHANNEL_COLUMN}))",
)
"""Statements that make the table, as the original's."""
FIND_MARK_TABLE = (
    "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA ="
    f" '{MARK_SCHEMA}' AND TABLE_NAME = '{MARK_TABLE}'"
)


def is_mark_table(schema: str, table: str) -> bool:
    """Return whether a table, under its upstream name, is the mark table."""
    return folded(table) == MARK_TABLE and folded(schema) == MARK_SCHEMA


def mark_statement(channel: int, row: int) -> str:
    """Return the statement that marks a transaction of `channel` by a row of it.

    It makes the row where the original's `update` expects it, as a Drainer that ends removes its
    channel's rows.
    """
    return (
        f"INSERT INTO {MARK_NAME} (id, {CHANNEL_COLUMN}, val, channel_info) VALUES"
        f" ({row}, {channel}, 1, '') ON DUPLICATE KEY UPDATE val = val + 1"
    )
