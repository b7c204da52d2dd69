"""Hold all rules of a pipeline, and digest them: equal digests prepare the same changes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.routes import Routes


@dataclass(frozen=True, slots=True)
class ReplicationRules:
    """The settings of ``[filter]`` and ``[[route]]``."""

    filters: Filter = field(default_factory=Filter)
    routes: Routes = field(default_factory=Routes)
    ignored_ts: frozenset[int] = frozenset()
    """Commit timestamps of transactions and DDL that are excluded."""


def rules_digest(filters: Filter, routes: Routes) -> str:
    """Return sixteen hexadecimal digits of the rules' SHA-256."""
    text = json.dumps([_plain(filters), _plain(routes)], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, each.name)) for each in dataclasses.fields(value)]
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
