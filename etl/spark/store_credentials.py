"""Send credentials for object stores to Spark's workers, inside of the function they run.

It is for those that workers can't have by themselves. So they are on the Spark Connect channel,
with what TLS that has, and in the workers' memory; no setting of Spark's, no plan and no page shows
them, nor does the event log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sluice.relay.storage.credentials import StoreCredentials, known_credentials, register_provider

__all__ = ["with_credentials"]


@dataclass(frozen=True, slots=True)
class _WithCredentials:
    """A function that opens stores, and what it needs for that."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    credentials: dict[str, StoreCredentials]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for url, found in self.credentials.items():
            register_provider(url, _StaticCredentials(found))
        yield from self.function(batches)


@dataclass(frozen=True, slots=True)
class _StaticCredentials:
    credentials: StoreCredentials

    def __call__(self) -> StoreCredentials:
        return self.credentials


def with_credentials(
    function: Callable[[Iterator[Any]], Iterator[Any]],
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Wrap a function of record batches for Spark's workers with this process's credentials.

    Without any, the function stays as it is. Raises what the credentials' provider raises.
    """
    found = known_credentials()
    return _WithCredentials(function, found) if found else function
