"""Credentials for object stores that Spark's workers can't have by themselves travel inside of the function they run.

So they are on the Spark Connect channel, with what TLS that has, and in the workers' memory; no setting of Spark's, no
plan and no page shows them, nor does the event log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from relay.storage.credentials import Credentials, known, provide

__all__ = ["for_workers"]


@dataclass(frozen=True, slots=True)
class _WithStores:
    """A function that opens stores, and what it needs for that."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    credentials: dict[str, Credentials]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for url, found in self.credentials.items():
            provide(url, _Given(found))
        yield from self.function(batches)


@dataclass(frozen=True, slots=True)
class _Given:
    credentials: Credentials

    def __call__(self) -> Credentials:
        return self.credentials


def for_workers(function: Callable[[Iterator[Any]], Iterator[Any]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function of record batches as Spark's workers are to run it: with the credentials of this process, if it was
    given any. Raises what asking for them raises.
    """
    found = known()
    return _WithStores(function, found) if found else function
