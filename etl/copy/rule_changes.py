"""Find the tables whose rows downstream follow rules that have changed since, and note it.

Rules are about changes from now on. What former rules left downstream stays, until a backfill
replaces it or a verification finds it equal all the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sluice.errors import SluiceError
from sluice.etl.changes.rules import RecordedRules, rule_differences, rules_digest
from sluice.etl.copy.copy_source_cluster import SourceCluster
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.settings import Downstream, Settings
from sluice.relay import RelayLog
from sluice.relay.rule_changes import AppliedRules, OutdatedTable, RuleChanges
from sluice.tidb.schema import Table

__all__ = [
    "describe_outdated",
    "end_outdated",
    "have_rules_changed",
    "note_rules",
    "outdated_tables",
    "warn_of_outdated",
]

log = logging.getLogger("sluice.apply")


def describe_outdated(table: OutdatedTable) -> str:
    """Return why a table is outdated and what mends it, for people."""
    before = f" from before commit_ts {table.since_ts}" if table.since_ts else ""
    return f"rows of {table.name}{before} follow former rules ({table.why}): `{table.command}`"


def have_rules_changed(settings: Settings, known: AppliedRules) -> bool:
    """Return whether the settings have other rules than those applied last. Raises MaskKeyError."""
    return known.are_others(rules_digest(settings.filters, settings.routes))


def outdated_tables(
    settings: Settings, tables: Sequence[Table] | None = None
) -> list[OutdatedTable]:
    """Return the tables whose rows downstream aren't as the settings' rules say.

    Those of rules that no process applies by yet are among them. `tables`: all of the upstream's,
    None to ask it if need be. Raises SluiceError, OSError, ValueError.
    """
    known = RuleChanges(settings.open_relay().place).load()
    if tables is None:
        is_needed = known.tables or have_rules_changed(settings, known)
        tables = _definitions(settings, 0) if is_needed else ()
    return list(_with_changes(settings, known, tables, 0, 0))


def note_rules(settings: Settings, relay: RelayLog) -> tuple[OutdatedTable, ...]:
    """Note by which rules changes are applied from now on; return the tables that are outdated.

    Of topics and files none is: what they have stays. The upstream is asked only if the rules have
    changed, or tables are outdated. Raises SluiceError, OSError, ValueError.
    """
    changes = RuleChanges(relay.place)
    known = changes.load()
    digest = rules_digest(settings.filters, settings.routes)
    if known.digest == digest and not known.tables:
        return ()
    at, last = 0, relay.last()
    tables: Sequence[Table] = ()
    # without one nothing is known to be downstream by other rules
    if known.digest and last is not None and isinstance(settings.target, Downstream):
        checkpoint = read_checkpoint(settings.target, last.cluster_id)
        if checkpoint is not None:
            if checkpoint.in_flight is not None and checkpoint.in_flight.rules not in ("", digest):
                return known.tables  # applying refuses other rules until that batch is through
            at = checkpoint.commit_ts
            tables = _definitions(settings, at)
    text = RecordedRules.of(settings.filters, settings.routes).to_text()

    def changed(before: AppliedRules) -> AppliedRules:
        now_ms = time.time_ns() // 1_000_000
        found = tuple(_with_changes(settings, before, tables, at, now_ms))
        return replace(before, digest=digest, rules=text, tables=found)

    return changes.change(changed).tables


def warn_of_outdated(settings: Settings) -> None:
    """Log at a start of applying which tables are outdated, and how to mend each.

    What hinders that is logged, and hinders nothing else.
    """
    try:
        found = note_rules(settings, settings.open_relay())
    except (SluiceError, OSError, ValueError) as error:
        log.warning("it is unknown whether tables follow former rules: %s", error)
        return
    for table in found:
        log.warning("%s", describe_outdated(table))


def end_outdated(
    settings: Settings, relay: RelayLog, names: Collection[str], begun_ms: int
) -> None:
    """Note that these tables are as the rules say, by a job that began at `begun_ms` (Unix ms).

    A job by other rules than those applied by proves nothing. Raises RelayError, OSError,
    MaskKeyError.
    """
    changes = RuleChanges(relay.place)
    known = changes.load()
    is_about = any(table.name in names for table in known.tables)
    if not is_about or have_rules_changed(settings, known):
        return

    def changed(before: AppliedRules) -> AppliedRules:
        left = (
            table for table in before.tables if table.name not in names or table.since_ms > begun_ms
        )
        return replace(before, tables=tuple(left))

    changes.change(changed)


def _with_changes(
    settings: Settings, known: AppliedRules, tables: Sequence[Table], at: int, now_ms: int
) -> Iterable[OutdatedTable]:
    """Yield the tables known to be outdated that are still there, and those by changed rules."""
    former = {table.table_id: table for table in known.tables}
    has_changed = have_rules_changed(settings, known)
    after = RecordedRules.of(settings.filters, settings.routes)
    before = RecordedRules.from_text(known.rules) if has_changed else after
    for table in tables:
        if not table.is_base_table:
            continue
        names = table.schema_name, table.name
        why = "; ".join(rule_differences(before, after, *names))
        if why:
            yield OutdatedTable(table.id, table.full_name, why, at, now_ms)
        elif table.id in former and after.wants(*names):
            yield replace(former[table.id], name=table.full_name)


def _definitions(settings: Settings, at: int) -> Sequence[Table]:
    """Return the upstream's tables as of `at` (TSO), or as of now if TiKV has none of then."""
    with SourceCluster.connect(settings.upstream) as cluster:
        try:
            return cluster.definitions(at or cluster.pd.tso()).of_users().tables
        except SluiceError:
            return cluster.definitions(cluster.pd.tso()).of_users().tables
