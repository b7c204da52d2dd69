"""Find the DDL that ran before a Drainer broke off, and move the checkpoint past it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import Checkpoint, MySQLSession
from sluice.etl.downstream.ddl import (
    DdlError,
    DdlExecutor,
    executed_prefix,
    first_already_converted,
    first_not_replayable,
)
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob

log = logging.getLogger("sluice.apply")


def advance_past_ddl(
    session: MySQLSession,
    executor: DdlExecutor,
    before: Checkpoint,
    ddls: Sequence[ScopedDdl],
    missing: Callable[[MySQLSession, int], str],
) -> Checkpoint:
    """Return the checkpoint after `before`, see `TakesOver.look_ahead`.

    What has run gets the definitions that it is to leave. Raises DdlError and DownstreamError.
    """
    least, most = executed_prefix(session, ddls)
    if before.pending is not None:
        least = 0  # one that was begun here: its marker shows whether it ran
    if least and (wrong := missing(session, ddls[least - 1].commit_ts)):
        if (ddl := first_not_replayable(ddls[:least])) is not None:
            raise DdlError(
                f"{ddl.title}: {ddl.query[:500]}: the tables on {session.address} look as if it had"
                f" run, but not all that was committed before it is there: {wrong}. If another"
                " program made this change there, undo it, then let the task go on. If it was the"
                ' Drainer, and the rows are right as they are, set "commitTS" in the checkpoint to'
                " this commit_ts"
            )
        least = 0  # written again on the tables as they are; the DDL finds that it is done
    session.query("COMMIT")
    if most < len(ddls):
        before = replace(before, safe_until=min(before.safe_until, ddls[most].commit_ts - 1))
    if least:
        commit_ts = ddls[least - 1].commit_ts
        log.info(
            "everything through the DDL at commit_ts %s is downstream already, for it has run",
            commit_ts,
        )
        for number, ddl in enumerate(ddls[:least]):
            later = set().union(*(other.effect.tables for other in ddls[number + 1 : most]))
            if later.isdisjoint(ddl.effect.tables):  # else it isn't as this one left it
                executor.reconcile_definitions(ddl)
        session.query("COMMIT")
        before = before.at(commit_ts, ddls[least - 1].schema_version)
    elif most < len(ddls) and before.pending is None:
        before = before.at(before.commit_ts)
    for ddl in ddls[least:most]:
        _check_repeatable(ddl)
    if before.pending is None and (again := first_already_converted(session, ddls[least:most])):
        raise _not_repeatable_error(again[0], f"change the values of {again[1]} twice")
    return before


def _check_repeatable(ddl: ScopedDdl) -> None:
    """Raise DdlError for a DDL that must not run again if it has run."""
    if ddl.type == Action.EXCHANGE_PARTITION or _is_swap(ddl):
        raise _not_repeatable_error(ddl, "undo it")


def _not_repeatable_error(ddl: DdlJob, again: str) -> DdlError:
    """Return the error for a DDL that may have run; `again`: what running it once more would do."""
    return DdlError(
        f"{ddl.title}: {ddl.query[:500]}: the Drainer may have run it before it broke off, and a"
        " second time would"
        f' {again}. If it has run, set "commitTS" in the checkpoint to this commit_ts; if it'
        ' hasn\'t, set "safe-until"'
        ' in the checkpoint\'s "sluice" to one less'
    )


def _is_swap(ddl: ScopedDdl) -> bool:
    """Return whether a DDL gives a table the name that another one had before it."""
    before = {i: (table.schema_name, table.name) for i, table in ddl.before.items() if table}
    after = {i: (table.schema_name, table.name) for i, table in ddl.effect.tables.items() if table}
    return any(
        name == after.get(key) and other != key
        for other, name in before.items()
        for key in after
        if key in before
    )
