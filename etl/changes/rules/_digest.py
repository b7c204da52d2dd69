"""By which rules changes go downstream, as a short text: two settings with the same one prepare the same changes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.routes import Routes


def rules_digest(filters: Filter, routes: Routes) -> str:
    """Sixteen hexadecimal digits of a SHA-256."""
    text = json.dumps([_plain(filters), _plain(routes)], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
