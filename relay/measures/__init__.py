"""Counters of the tasks, kept under the relay log's URL, where they outlive the processes.

    <url>/measures/<source>/<number>.json
        counters, durations, lag over the last hour and day
    <url>/measures/<source>-tables/<number>.json
        changes by table

A source is what counts: ``land`` for landing, ``apply-…`` for applying to one downstream. Each of
its processes adds what it has counted since its last addition, by compare-and-set. So nothing is
counted twice and no counter goes back, whichever process takes over. What a process had not yet
added when it was killed isn't counted: ten seconds of it.
"""

from sluice.relay.measures.counted import BOUNDS_S, CounterDocument, Durations, TableCount
from sluice.relay.measures.measures import LAND, CounterStore, CounterTotals, source_of
from sluice.relay.measures.points import LagPoint
from sluice.relay.measures.recorder import CounterRecorder

__all__ = [
    "BOUNDS_S",
    "LAND",
    "CounterDocument",
    "CounterRecorder",
    "CounterStore",
    "CounterTotals",
    "Durations",
    "LagPoint",
    "TableCount",
    "source_of",
]
