"""Counters of the tasks, kept under the relay log's URL, where they outlive the processes.

    <url>/measures/<source>/<number>.json
        counters, durations, lag and pace over the last hour, day and week
    <url>/measures/<source>-tables/<number>.json
        changes by table, and by hour over the last day
    <url>/measures/states/<number>.json
        what could be restored and what was verified, over the last week
    <url>/measures/refusals/<number>.json
        the transactions that the downstream refused in the last day

A source is what counts: ``land`` for landing, ``apply-…`` for applying to one downstream. Each of
its processes adds what it has counted since its last addition, by compare-and-set. So nothing is
counted twice and no counter goes back, whichever process takes over. What a process had not yet
added when it was killed isn't counted: ten seconds of it.
"""

from sluice.relay.measures.conflicts import MAX_CONFLICTS, ConflictHistory, LostConflict
from sluice.relay.measures.counters import BOUNDS_S, CounterDocument, Durations, TableCount
from sluice.relay.measures.measures import LAND, CounterStore, CounterTotals, source_of
from sluice.relay.measures.points import DAY, HOUR, WEEK, LagPoint, LagSeries
from sluice.relay.measures.recorder import CounterRecorder
from sluice.relay.measures.refusals import Refusal, RefusalHistory
from sluice.relay.measures.states import StateHistory, StateSample

__all__ = [
    "BOUNDS_S",
    "DAY",
    "HOUR",
    "LAND",
    "MAX_CONFLICTS",
    "WEEK",
    "ConflictHistory",
    "CounterDocument",
    "CounterRecorder",
    "CounterStore",
    "CounterTotals",
    "Durations",
    "LagPoint",
    "LagSeries",
    "LostConflict",
    "Refusal",
    "RefusalHistory",
    "StateHistory",
    "StateSample",
    "TableCount",
    "source_of",
]
