"""Find what hinders a bootstrap downstream and in the relay log."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.copy.plan import CopyPlan
from sluice.etl.downstream import CheckpointTable, MySQLSession
from sluice.relay import RelayLog
from sluice.tidb.folded import folded
from sluice.tidb.table_name import abbreviate, full_name

__all__ = ["downstream_problems", "needed_from", "relay_problems"]

_MAX_SHOWN = 10


def relay_problems(relay: RelayLog, ts: int) -> list[str]:
    """Return why what was committed after `ts` can't go downstream from the relay log.

    The relay log is what is there, and what landing adds to it.
    """
    first, last = relay.first(), relay.last()
    if first is None or last is None or first.lo <= ts:
        return []
    return [
        f"the relay log {relay.url} holds the windows from {first.lo} to {last.hi}, and the source"
        f" is of {ts}: what was committed between is not in it. Take a younger source"
        " (`sluice snapshot make --from archive` makes one), or begin with an empty relay log"
        " ([relay] url), and land nothing before the copy is done"
    ]


def needed_from(relay: RelayLog, ts: int) -> int:
    """Return since when (TSO) pumps must have what was committed, for a copy as of `ts`.

    Landing goes on where it ended.
    """
    last = relay.last()
    return ts if last is None else last.hi


def downstream_problems(
    session: MySQLSession, checkpoint: CheckpointTable, plan: CopyPlan, into: Sequence[str]
) -> list[str]:
    """Return why the downstream is not as empty as it must be.

    `into`: databases that may hold other tables.
    """
    problems = []
    found = checkpoint.load() if checkpoint.exists() else None
    held = _existing_tables(session, plan, into)
    emptying = _emptying_sql([schema for schema, _ in held], plan, into)
    if found is not None:
        statements = "; ".join([*emptying, checkpoint.removal_sql()])
        problems.append(
            f"{session.address} has a checkpoint of this cluster already, at {found.commit_ts}: it"
            f" is a replica. To start over, empty it: {statements}"
        )
    if held:
        shown = abbreviate([full_name(*name) for name in held], _MAX_SHOWN)
        problems.append(
            f"{session.address} isn't empty: {shown}. Remove these tables: {'; '.join(emptying)}."
            " Databases that may hold others are named with --into"
        )
    session.commit()
    return problems


def _existing_tables(
    session: MySQLSession, plan: CopyPlan, into: Sequence[str]
) -> list[tuple[str, str]]:
    targets = {folded(planned.schema) for planned in plan.tables} - {folded(name) for name in into}
    planned = {(folded(p.schema), folded(p.name)) for p in plan.tables}
    return sorted(
        (str(schema), str(name))
        for schema, name in session.query(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
        )
        if folded(str(schema)) in targets or (folded(str(schema)), folded(str(name))) in planned
    )


def _emptying_sql(schemas: Sequence[str], plan: CopyPlan, into: Sequence[str]) -> list[str]:
    """Return statements that remove what hinders: databases, or of those in `into` the tables."""
    shared = {folded(name) for name in into}
    found = [
        f"DROP DATABASE {quote_name(s)}" for s in dict.fromkeys(schemas) if folded(s) not in shared
    ]
    there = {folded(schema) for schema in schemas} & shared
    found += [
        f"DROP TABLE IF EXISTS {quote_name(each.schema)}.{quote_name(each.name)}"
        for each in plan.tables
        if folded(each.schema) in there
    ]
    return found
