"""Describe a person's request for a bootstrap."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.etl.copy.dumpling import DumplingOptions

__all__ = ["BootstrapRequest"]


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """A person's request for a bootstrap.

    `url`: a Dumpling folder's, TIDB, or SNAPSHOT. `globs`: names of tables (schema.table, * and
    ?), () for all that the rules want. `into`: databases downstream that may hold other tables.
    `by`: the user who asks.
    """

    url: str
    options: DumplingOptions = field(default_factory=DumplingOptions)
    globs: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    by: str = "somebody"
