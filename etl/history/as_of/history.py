"""Read the tables' schema changes between two moments from window records.

They are the DDL in order, each with the tables it changes as they were, and the tables that exist
at each requested moment. No row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaReplay
from sluice.etl.history.errors import AsOfError
from sluice.relay import WindowLog
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.history import SYSTEM_SCHEMAS
from sluice.tidb.schema import Table
from sluice.tidb.table_name import fits, suggestion


@dataclass(slots=True)
class SchemaChangeLog:
    """The schema changes from `start_ts` through `until_ts` (TSO)."""

    start_ts: int
    until_ts: int
    moments: tuple[int, ...]
    known: dict[int, Table] = field(default_factory=dict)
    """The tables at the start whose rows are known there, by id."""
    unknown: dict[int, Table] = field(default_factory=dict)
    """Tables of which there is no more than a definition."""
    ddls: list[DdlJob] = field(default_factory=list)
    """The DDL jobs, with `before`."""
    dropping: list[tuple[int, int, int]] = field(default_factory=list)
    """(lo, hi, table id) of windows in which rows may take the place of others whose partition is
    about to be dropped.
    """
    skipped: list[int] = field(default_factory=list)
    """Commit timestamps of transactions that were left out at landing."""
    brings: Callable[[Table], frozenset[str]] = lambda table: frozenset()
    """The stored generated columns of which the snapshot at the start holds values."""
    may_lack: bool = False
    """True if stored generated columns may be left out, as their values are unknown."""
    tables_at: dict[int, dict[int, Table]] = field(default_factory=dict)
    """The tables there are, by id, at each of `moments`."""

    def find(self, moment: int, wanted: Iterable[str]) -> dict[str, Table]:
        """Tables by ``schema.table``, in the spelling that they have; names may have * and ?.

        Raises AsOfError for one that isn't there at the moment.
        """
        there = {
            t.full_name: t
            for t in self.tables_at[moment].values()
            if t.is_base_table and _is_users(t)
        }
        found: dict[str, Table] = {}
        for name in wanted:
            matched = {full: t for full, t in there.items() if fits(folded(full), folded(name))}
            if not matched:
                raise AsOfError(
                    f"no table {name} at {tso.text(moment)}{suggestion(name, there)}"
                    f"{self._hint(name, moment)}",
                    hint=_unknown_table_hint(name),
                )
            found |= matched
        return dict(sorted(found.items()))

    def _hint(self, name: str, moment: int) -> str:
        """Return the last DDL about it before the moment, or the first one after it."""
        own = [ddl for ddl in self.ddls if _is_about(ddl, name)]
        earlier = [ddl for ddl in own if ddl.commit_ts <= moment]
        for ddl in earlier[-1:] or own[:1]:
            when = "before" if earlier else "after"
            return f"; {when} that there is `{ddl.query[:200]}` at commit_ts {ddl.commit_ts}"
        if self.known:
            return ""
        return (
            f": nothing was found of it in what was committed after {tso.text(self.start_ts)}, and"
            " no snapshot has what there was before"
        )


def _is_about(ddl: DdlJob, name: str) -> bool:
    tables = (*ddl.before.values(), *ddl.effect.tables.values())
    return any(table is not None and table.full_name.lower() == name.lower() for table in tables)


def _is_users(table: Table) -> bool:
    return folded(table.schema_name) not in SYSTEM_SCHEMAS


def _unknown_table_hint(name: str) -> str:
    return (
        f"look for {name} at another moment, or make a snapshot that holds it: `sluice snapshot"
        " make`"
    )


def read_history(
    log: WindowLog,
    start_ts: int,
    known: Mapping[int, Table] | None,
    until_ts: int,
    moments: tuple[int, ...],
) -> SchemaChangeLog:
    """Read the schema changes in (start_ts, until_ts].

    `known`: the tables of the snapshot at `start_ts`, None if there is none. Raises AsOfError where
    the log doesn't reach, relay errors.
    """
    replay = SchemaReplay(start_ts, (known or {}).values())
    found = SchemaChangeLog(start_ts, until_ts, moments, dict(known or {}), replay.unknown)
    left = sorted(set(moments))
    if start_ts < until_ts:
        _check_reach(log, start_ts, until_ts)
        for window in log.windows(start_ts, until_ts):
            if not (window.tables or window.ddls or window.relaxed or window.skipped):
                continue
            schema = RecordedSchema.from_window(window)
            replay.enter(schema)
            found.dropping += [
                (window.lo, window.hi, i) for i, indexes in schema.relaxed.items() if not indexes
            ]
            found.skipped += [int(entry["commit_ts"]) for entry in window.skipped]
            for ddl in replay.advance(schema.ddls, until_ts):
                while left and left[0] < ddl.commit_ts:
                    found.tables_at[left.pop(0)] = dict(replay.tables)
                if ddl.type == Action.FLASHBACK_CLUSTER:
                    raise AsOfError(
                        f"{ddl.title} took the whole cluster back to an earlier moment, and its"
                        " rows are in no binlog",
                        hint="begin with a snapshot that was made after it: `sluice snapshot make`",
                    )
                if ddl.effect.tables:
                    found.ddls.append(ddl)
    found.tables_at |= {moment: dict(replay.tables) for moment in left}
    return found


def _check_reach(log: WindowLog, start_ts: int, until_ts: int) -> None:
    first, last = log.first(), log.last()
    if first is None or last is None:
        raise AsOfError(f"{log.url}: nothing was landed", hint="wait until windows are landed")
    if start_ts < first.lo:
        raise AsOfError(
            f"{log.url} holds what was committed after {tso.text(first.lo)}, not from"
            f" {tso.text(start_ts)} on",
            hint=(
                "ask for a moment after the first snapshot: `sluice archive status` shows from when"
            ),
        )
    if until_ts > last.hi:
        raise AsOfError(
            f"{log.url} holds what was committed through {tso.text(last.hi)}: {tso.text(until_ts)}"
            " isn't landed",
            hint="ask for an earlier moment, or wait until it is landed",
        )
