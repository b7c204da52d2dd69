"""What tasks count while they work, kept under the relay log's URL, so that it lives through the processes that count.

    <url>/measures/<source>/<number>.json            counters, durations, lag over the last hour and day
    <url>/measures/<source>-tables/<number>.json     changes by table

A source is who counts: ``land`` for landing, ``apply-…`` for applying to one downstream. Of its processes each adds
what it has counted since it added the last time, by compare-and-set, so nothing is counted twice and nothing goes back,
whoever takes over from whom. What a process had not yet added when it was killed isn't counted: ten seconds of it.
"""

from relay.measures.counted import BOUNDS_S, Durations, Measured, TableCount
from relay.measures.measures import LAND, Measures, Totals, source_of
from relay.measures.points import LagPoint
from relay.measures.recorder import Recorder

__all__ = [
    "BOUNDS_S",
    "LAND",
    "Durations",
    "LagPoint",
    "Measured",
    "Measures",
    "Recorder",
    "TableCount",
    "Totals",
    "source_of",
]
