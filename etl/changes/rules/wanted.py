"""All rules of a pipeline together: what goes downstream, and under which names."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.routes import Routes


@dataclass(frozen=True, slots=True)
class ReplicationRules:
    """What the settings say in ``[filter]`` and ``[[route]]``."""

    filters: Filter = field(default_factory=Filter)
    routes: Routes = field(default_factory=Routes)
    ignored_ts: frozenset[int] = frozenset()
    """Commit timestamps of transactions and DDL that are left out."""
