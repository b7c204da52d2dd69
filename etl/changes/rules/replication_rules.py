"""Hold a pipeline's rules, digest them, and find DDL that changes nothing downstream."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from sluice.etl.changes.masks import key_fingerprint
from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.routes import Routes
from sluice.etl.changes.rules.source_columns import with_source_column
from sluice.tidb.ddl_actions import IGNORED_ACTIONS, Action, action_name
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class ReplicationRules:
    """The settings of ``[filter]`` and ``[[route]]``."""

    filters: Filter = field(default_factory=Filter)
    routes: Routes = field(default_factory=Routes)
    ignored_ts: frozenset[int] = frozenset()
    """Commit timestamps of transactions and DDL that are excluded."""

    def shaped(self, table: Table) -> Table:
        """Return the table, under its upstream name, with the columns that it has downstream.

        As `Filter.narrowed`, and with the one that a route adds. Raises ColumnRuleError,
        RouteError.
        """
        target = self.routes.target(table.schema_name, table.name)
        return with_source_column(self.filters.narrowed(table), target)


def rules_digest(filters: Filter, routes: Routes) -> str:
    """Return sixteen hexadecimal digits of the rules' SHA-256. Raises MaskKeyError."""
    plain = _plain(filters)
    for rule, written in zip(filters.columns, plain[-1], strict=True):
        history, soft_delete, added = written.pop(), written.pop(), written.pop()
        places = sorted({mask.key for _, mask in rule.masks if mask.key})
        for _, mask in written[-1]:
            if not mask[-1]:  # of a version without `by`
                mask.pop()
        if rule.masks:  # another key makes other values
            written.append([key_fingerprint(place) for place in places])
        else:
            written.pop()
        if rule.added:
            written.append({"added": added})
        if rule.soft_delete:
            written.append({"soft-delete": soft_delete})
        if rule.history:
            written.append({"history": history})
    # The digest of rules that a version without column or row rules wrote.
    if not filters.columns:
        plain.pop()
        if not filters.rows:
            plain.pop()
    routed = _plain(routes)
    for rule in routed[0]:  # that of a rule without a column, as former versions wrote it
        if not rule[-1]:
            rule.pop()
    text = json.dumps([plain, routed], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def masks_digest(filters: Filter) -> str:
    """Return sixteen hexadecimal digits of all masks, by which tables and keys. "" for none.

    Raises MaskKeyError.
    """
    masks = sorted(
        [list(rule.tables), folded(name), mask.landed_text()]
        for rule in filters.columns
        for name, mask in rule.masks
    )
    if not masks:
        return ""
    return hashlib.sha256(json.dumps(masks, ensure_ascii=False).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, each.name)) for each in dataclasses.fields(value)]
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


FOR_TIDB_ALONE = {
    Action.SHARD_ROW_ID: "SHARD_ROW_ID_BITS",
    Action.REPAIR_TABLE: "ADMIN REPAIR TABLE",
    Action.SET_TIFLASH_REPLICA: "TiFlash replicas",
    Action.MODIFY_AUTO_ID_CACHE: "AUTO_ID_CACHE",
    Action.REBASE_AUTO_RANDOM_BASE: "AUTO_RANDOM_BASE",
    Action.ALTER_TABLE_STATS_OPTIONS: "statistics options",
    Action.ALTER_TTL: "TTL",
    Action.ALTER_TTL_ENABLE: "TTL",
    Action.REMOVE_TTL: "TTL",
}
"""Job types without meaning in a MySQL, and what they are about."""


def skip_reason(ddl: DdlJob, filters: Filter) -> str | None:
    """Return why nothing is executed downstream for a DDL; None if something is."""
    kind = ddl.type
    query = ddl.query.strip().lower()
    if query.startswith("select setval"):
        return "sequence values come with the rows"
    if kind in IGNORED_ACTIONS:
        return f"job type {kind} ({action_name(kind)}) changes nothing a downstream has"
    if kind in FOR_TIDB_ALONE:
        return f"{FOR_TIDB_ALONE[Action(kind)]} mean nothing downstream"
    if ddl.has_only_begun:
        return "DROP COLUMN has only begun"
    schemas = {table.schema_name for table in ddl.effect.tables.values() if table}
    schemas |= {schema.name for schema in ddl.effect.schemas.values() if schema}
    if not any(filters.wants_schema(name) for name in schemas or {ddl.schema_name}):
        return "the schema is filtered out"
    return None
