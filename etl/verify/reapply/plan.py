"""Plan a reapply: what it would do, before it does it."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.etl.display_units import counted, format_size
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.settings import Settings
from sluice.etl.verify.reapply import window_range
from sluice.etl.verify.reapply.repair_run import repair_notes, repair_problems
from sluice.etl.verify.reapply.request import ReplayRequest
from sluice.etl.verify.reapply.target import ReplayTarget
from sluice.etl.verify.reapply.window_range import ReplayWindows
from sluice.relay.jobs import with_landed_end
from sluice.relay.json_codec import JsonDocument
from sluice.tidb import tso
from sluice.tidb.table_name import first_of

_MAX_DDLS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ReplayPlan(JsonDocument):
    """The plan of a reapply.

    `transactions`, `changes` and `bytes` (of the relay log's files) are those of the windows that
    any wanted table changes in: an upper bound of the work. `ddls`: each as its commit timestamp,
    its time and its statement.
    """

    since: int
    until: int
    to: str
    windows: int
    transactions: int
    changes: int
    bytes: int
    tables: tuple[str, ...]
    ddls: tuple[str, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the plan for people."""
        return [
            f"since    {tso.text(self.since)}",
            f"until    {tso.text(self.until)}",
            f"to       {self.to}",
            f"in all   {counted(self.windows, 'window')}, at most"
            f" {counted(self.changes, 'row change')} in"
            f" {counted(self.transactions, 'transaction')}, {format_size(self.bytes)} of the"
            " relay log",
            *(f"table    {name}" for name in self.tables),
            *(f"ddl      {ddl}" for ddl in first_of(self.ddls, _MAX_DDLS_SHOWN)),
            *(f"note     {note}" for note in self.notes),
            *(f"stops    {problem}" for problem in self.problems),
        ]


def make_replay_plan(settings: Settings, request: ReplayRequest) -> ReplayPlan:
    """Return the request's plan, with what prevents it in `problems`.

    Nothing is written. Raises SettingsError, DownstreamError, KafkaUnavailableError, ApplyError,
    relay errors and OSError.
    """
    relay = settings.open_relay()
    request, own = with_landed_end(request, relay), request.settings(settings)
    found = window_range.inspect_range(relay, request.since, request.until, own.filters)
    problems, notes = list(found.problems), []
    if not problems and request.is_repair:
        problems += [
            *window_range.unmatched(request.tables, found),
            *repair_problems(settings, request, found),
        ]
        notes += repair_notes(settings)
    elif not problems:
        other = ReplayTarget(settings, own, found.cluster_id, request.since)
        problems += window_range.unmatched(request.tables, found)
        problems += other.problems(found)
        notes += other.notes()
    return _plan(request, downstream_name(own.target), found, (notes, problems))


def _plan(
    request: ReplayRequest, to: str, found: ReplayWindows, findings: tuple[list[str], list[str]]
) -> ReplayPlan:
    notes, problems = findings
    ddls = tuple(
        f"{tso.text(ddl.commit_ts)}: {' '.join(ddl.query.split())[:200]}" for ddl in found.ddls
    )
    return ReplayPlan(
        request.since,
        request.until,
        to,
        found.windows,
        found.transactions,
        found.changes,
        found.bytes,
        tuple(sorted(found.tables)),
        ddls,
        tuple(notes),
        tuple(problems),
    )
