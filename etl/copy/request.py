"""What a person asks a bootstrap for."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.etl.copy.dumpling import DumplingOptions

__all__ = ["BootstrapRequest"]


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """What a person asks for.

    `url`: a Dumpling folder's, TIDB, or SNAPSHOT. `globs`: names of tables (schema.table, * and ?), ()
    for all that the rules want. `into`: databases downstream that may hold other tables. `by`: who
    asks.
    """

    url: str
    options: DumplingOptions = field(default_factory=DumplingOptions)
    globs: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    by: str = "somebody"
