"""What tasks count while they work, kept under the relay log's URL, so that it lives through the
processes that count.

    <url>/measures/<source>/<number>.json            counters, durations, lag over the last hour and day
    <url>/measures/<source>-tables/<number>.json     changes by table

A source is who counts: ``land`` for landing, ``apply-…`` for applying to one downstream. Of its
processes each adds what it has counted since it added the last time, by compare-and-set, so nothing
is counted twice and nothing goes back, whoever takes over from whom. What a process had not yet
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
