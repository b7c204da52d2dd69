"""Warn of DDL jobs whose rows have no binlog: BR restores, Lightning imports, FLASHBACK CLUSTER."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.table_name import argument

__all__ = ["warn_without_binlog"]

log = logging.getLogger("sluice.land")

_BR_COMMENT = "/*from(br)*/"
"""The prefix of statements of BR's jobs."""
_CREATING_ACTIONS = {Action.CREATE_TABLE, Action.CREATE_TABLES}
_MAX_SHOWN = 20
_LIGHTNING = ("lightning_task_info", "lightning_metadata")
"""Databases in which Lightning keeps its tasks while it imports in physical mode."""


def warn_without_binlog(ddls: Iterable[DdlJob], wants_table: Callable[[str, str], bool]) -> int:
    """Warn of each job of wanted tables whose rows come without a binlog.

    Return how many there are.

    `wants_table(schema, table)`: whether the table is replicated.
    """
    found = 0
    for ddl in ddls:
        if text := _text(ddl, wants_table):
            found += 1
            log.warning("%s: %s", ddl.title, text)
    return found


def _text(ddl: DdlJob, wants_table: Callable[[str, str], bool]) -> str:
    if ddl.type == Action.FLASHBACK_CLUSTER:
        return (
            "FLASHBACK CLUSTER sets rows back that are in no binlog: applying stops there, and"
            " names the ways out"
        )
    if (
        ddl.type in (Action.CREATE_SCHEMA, *_CREATING_ACTIONS)
        and ddl.schema_name.lower() in _LIGHTNING
    ):
        return (
            "TiDB Lightning is importing in physical mode, whose rows are in no binlog: when it has"
            " ended, run `sluice backfill --table SCHEMA.TABLE` for each table that it fills"
        )
    if ddl.type not in _CREATING_ACTIONS or not (
        ddl.type == Action.CREATE_TABLES or ddl.query.lstrip().startswith(_BR_COMMENT)
    ):
        return ""
    tables = (
        table for table in ddl.effect.tables.values() if table is not None and table.is_base_table
    )
    names = [t.full_name for t in tables if wants_table(t.schema_name, t.name)]
    if not names:
        return ""
    globs = " ".join(f"--table {argument(name)}" for name in names[:_MAX_SHOWN])
    more = (
        f", and the same for {len(names) - _MAX_SHOWN} more tables"
        if len(names) > _MAX_SHOWN
        else ""
    )
    return (
        "BR restores tables whose rows are in no binlog: when it has ended, run `sluice backfill"
        f" {globs}`{more}"
    )
