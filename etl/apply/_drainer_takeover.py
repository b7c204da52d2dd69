"""Find how far a Drainer came after the checkpoint that it left when it broke off, by its DDL.

A Drainer writes what comes before a DDL, then the DDL by itself, then what comes after it. So if it
has run a DDL, all before it is downstream; if it hasn't, nothing after it is. Only what lies
between has to be written in safe mode. A table that looks as after a DDL proves nothing: a DBA may
have built the same index beforehand. So changes before such a DDL are skipped only if their rows
are downstream.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from sluice.etl.apply._batch import WaitStopped
from sluice.etl.apply._verify_applied import first_unapplied_row
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaReplay
from sluice.etl.changes.rules import ReplicationRules, ScopeError, scope_ddl
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import Checkpoint, MySQLSession
from sluice.etl.downstream.sinks.sink import DrainerTakeover
from sluice.relay import RelayLog

log = logging.getLogger("sluice.apply")


def advance_past_executed_ddl(
    sink: DrainerTakeover,
    checkpoint: Checkpoint,
    relay: RelayLog,
    wait: Callable[[], bool],
    rules: ReplicationRules,
) -> Checkpoint:
    """Return the checkpoint moved past all that is certainly downstream, and safe mode's end.

    Waits until all that may be downstream is landed, as a DDL that isn't landed may have run.
    `wait` sleeps a little and returns whether to continue. Raises DdlError for a DDL that may have
    run and does harm when it runs again, and WaitStopped.
    """
    ddls = list(_pending_ddls(relay, checkpoint, wait, rules))

    def missing(session: MySQLSession, through: int) -> str:
        return first_unapplied_row(session, relay, rules, checkpoint, through)

    return sink.advance_past_ddl(ddls, missing)


def _pending_ddls(
    relay: RelayLog, checkpoint: Checkpoint, wait: Callable[[], bool], rules: ReplicationRules
) -> Iterator[ScopedDdl]:
    """Yield the DDL after the checkpoint through its `safe_until`, as it is executed downstream.

    Each has `before`, its tables before the DDL.
    """
    after, through = checkpoint.commit_ts, checkpoint.safe_until
    replay = SchemaReplay(after)
    position, logged = after, False
    while position < through:
        window = relay.find(position)
        if window is None:
            if not logged:
                log.info(
                    "waiting until everything through commit_ts %s is landed, to find which DDL has"
                    " run downstream",
                    through,
                )
                logged = True
            if not wait():
                raise WaitStopped  # DDL that isn't landed yet may have undone what is downstream
            continue
        schema = RecordedSchema.from_window(window)
        replay.enter(schema)
        for ddl in replay.advance(schema.ddls, through):
            if ddl.commit_ts not in rules.ignored_ts:
                before = {i: table for i, table in ddl.before.items() if table is not None}
                with contextlib.suppress(ScopeError):  # raised again when the DDL is applied
                    scoped = scope_ddl(ddl, before, rules.filters, rules.routes)
                    if scoped.ddl is not None:
                        yield scoped.ddl
        position = window.hi
