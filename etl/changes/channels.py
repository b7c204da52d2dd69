"""Decide by its mark where a transaction goes: pairs, rings and chains of clusters.

A mark names the channel of the cluster whose applications wrote the transaction. In a pair both
directions share one channel, which means "came from the other side".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels that one pipeline writes, leaves out and passes on."""

    own: int
    """The mark of what the upstream's own applications wrote."""
    returned: int
    """The mark of what the downstream has already: it came from there."""
    passed_on: frozenset[int] = frozenset()
    """The marks of other clusters, which stay."""

    @classmethod
    def of_pair(cls, channel: int) -> Self:
        """Return the channels of two clusters that replicate each other."""
        return cls(channel, channel)

    @classmethod
    def of_ring(cls, own: int, ring: tuple[int, ...]) -> Self:
        """Return the channels of the pipeline from `own` to the one behind it in `ring`."""
        returned = ring[(ring.index(own) + 1) % len(ring)]
        return cls(own, returned, frozenset(ring) - {own, returned})

    @property
    def is_ring(self) -> bool:
        """Return whether a mark names one cluster, and not a pair of them."""
        return self.own != self.returned
