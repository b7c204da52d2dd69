"""Going on from a checkpoint that a Drainer left when it broke off: how far it had come, as far as DDL tells.

A Drainer writes what comes before a DDL, then the DDL by itself, then what comes after it. So a DDL that it has run
says that all before it is downstream, and one that it hasn't run that nothing after it is. Only what lies between has
to be written in safe mode. That a table looks as after a DDL doesn't say who made it so: a DBA may have built the same
index beforehand. So what lies before such a DDL is passed over only if its rows are there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from sluice.etl.apply._batch import WaitStopped
from sluice.etl.apply._verify_applied import first_unapplied_row
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import ReplicationRules, ScopeError, scope_ddl
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import Checkpoint, MySQLSession
from sluice.etl.downstream.sinks.sink import DrainerTakeover
from sluice.relay import RelayLog
from sluice.tidb.schema import Table

log = logging.getLogger("sluice.apply")


def advance_past_executed_ddl(
    sink: DrainerTakeover, checkpoint: Checkpoint, relay: RelayLog, wait: Callable[[], bool], rules: ReplicationRules
) -> Checkpoint:
    """The checkpoint moved over everything that is downstream for certain, with safe mode no longer than it has to be.

    Waits until all that may be downstream is landed: a DDL that isn't may have run. `wait` sleeps a little and says
    whether to go on waiting. Raises DdlError for a DDL that may have run, and does harm when it runs again, and
    StoppedError.
    """
    ddls = list(_pending_ddls(relay, checkpoint, wait, rules))

    def missing(session: MySQLSession, through: int) -> str:
        return first_unapplied_row(session, relay, rules, checkpoint, through)

    return sink.advance_past_ddl(ddls, missing)


def _pending_ddls(
    relay: RelayLog, checkpoint: Checkpoint, wait: Callable[[], bool], rules: ReplicationRules
) -> Iterator[ScopedDdl]:
    """The DDL committed after the checkpoint and through its `safe_until` that goes downstream, as it goes there, each
    with `before`: its tables as they were.
    """
    after, through = checkpoint.commit_ts, checkpoint.safe_until
    tables: dict[int, Table | None] = {}
    position, said = after, False
    while position < through:
        window = relay.find(position)
        if window is None:
            if not said:
                log.info(
                    "waiting until everything through commit_ts %s is landed, to see which DDL has run downstream",
                    through,
                )
                said = True
            if not wait():
                raise WaitStopped  # what is still to come may have undone what is there
            continue
        schema = RecordedSchema.from_window(window)
        tables |= schema.tables
        for ddl in schema.ddls:
            if after < ddl.commit_ts <= through and ddl.commit_ts not in rules.ignored_ts:
                before = {i: table for i in ddl.effect.tables if (table := tables.get(i)) is not None}
                with contextlib.suppress(ScopeError):  # told when it is to be applied
                    scoped = scope_ddl(ddl, before, rules.filters, rules.routes)
                    if scoped.ddl is not None:
                        yield scoped.ddl
            tables |= ddl.effect.tables
        position = window.hi
