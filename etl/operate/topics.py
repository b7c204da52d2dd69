"""List what each topic of a Kafka downstream got, as the apply process counted it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

__all__ = ["TopicTraffic", "topic_traffic"]

_MESSAGES, _BYTES, _ERRORS = (f"topic.{what}." for what in ("messages", "bytes", "errors"))
"""Prefixes of the counters in `sluice.relay.measures`, with a topic's name behind them."""


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """Messages that are committed in a topic, and errors of sending to it, retried ones included.

    `bytes`: of keys and values. A topic is complete through the checkpoint, so its lag is that of
    the pipeline.
    """

    topic: str
    messages: int
    bytes: int
    errors: int


def topic_traffic(counts: Mapping[str, int]) -> list[TopicTraffic]:
    """Return the traffic of each topic in the counters of applying, by name."""
    names = {
        name.removeprefix(prefix)
        for name in counts
        for prefix in (_MESSAGES, _BYTES, _ERRORS)
        if name.startswith(prefix)
    }
    found = (
        TopicTraffic(name, *(counts.get(p + name, 0) for p in (_MESSAGES, _BYTES, _ERRORS)))
        for name in names
    )
    return sorted(found, key=attrgetter("topic"))
