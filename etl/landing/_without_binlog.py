"""Warn of DDL jobs whose rows have no binlog: BR restores, Lightning imports, FLASHBACK CLUSTER."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from sluice.relay import RelayError, RelayLog
from sluice.relay.verification_log import UPSTREAM, TableVerified, Verifications
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.table_name import argument, first_of

__all__ = ["mark_unverified", "warn_without_binlog"]

log = logging.getLogger("sluice.land")

_BR_COMMENT = "/*from(br)*/"
"""The prefix of statements of BR's jobs."""
_CREATING_ACTIONS = {Action.CREATE_TABLE, Action.CREATE_TABLES}
_MAX_SHOWN = 20
_LIGHTNING = ("lightning_task_info", "lightning_metadata")
"""Databases in which Lightning keeps its tasks while it imports in physical mode."""


def warn_without_binlog(
    ddls: Iterable[DdlJob], wants_table: Callable[[str, str], bool]
) -> list[DdlJob]:
    """Return the jobs of wanted tables whose rows come without a binlog, and warn of each.

    `wants_table(schema, table)`: whether the table is replicated.
    """
    found = []
    for ddl in ddls:
        if text := _text(ddl, wants_table):
            found.append(ddl)
            log.warning("%s: %s", ddl.title, text)
    return found


def mark_unverified(
    relay: RelayLog, ddls: Iterable[DdlJob], wants_table: Callable[[str, str], bool]
) -> None:
    """Mark the jobs' tables for `sluice status` and the pages until they are verified.

    Best effort: a failure is logged.
    """
    at_ms = time.time_ns() // 1_000_000
    tables = [
        TableVerified(name, ddl.commit_ts, at_ms, 0, 0, 0, UPSTREAM, "", _problem(ddl, name))
        for ddl in ddls
        for name in _names(ddl, wants_table)
    ]
    if not tables:
        return
    try:
        Verifications(relay).doubt(tables)
    except (RelayError, OSError) as error:
        log.warning("cannot record for `sluice status` that tables lack rows: %s", error)


def _problem(ddl: DdlJob, name: str) -> str:
    return (
        f"DDL job {ddl.job_id} brought rows without a binlog: run `sluice backfill --table"
        f" {argument(name)}`, then `sluice verify {argument(name)}`"
    )


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
    names = _names(ddl, wants_table)
    if not names:
        return ""
    globs = first_of((f"--table {argument(name)}" for name in names), _MAX_SHOWN, "tables")
    more = "".join(f", {others}" for others in globs[_MAX_SHOWN:])
    return (
        "BR restores tables whose rows are in no binlog: when it has ended, run `sluice backfill"
        f" {' '.join(globs[:_MAX_SHOWN])}`{more}"
    )


def _names(ddl: DdlJob, wants_table: Callable[[str, str], bool]) -> list[str]:
    """Return the full names of wanted tables that BR made by this job."""
    if ddl.type not in _CREATING_ACTIONS or not (
        ddl.type == Action.CREATE_TABLES or ddl.query.lstrip().startswith(_BR_COMMENT)
    ):
        return []
    tables = (
        table for table in ddl.effect.tables.values() if table is not None and table.is_base_table
    )
    return [t.full_name for t in tables if wants_table(t.schema_name, t.name)]
