"""The server that is restored to: what is there already, and what of it may go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.etl.downstream import MySQLSession
from sluice.etl.restore.lineage import Name
from sluice.tidb.folded import folded
from sluice.tidb.table_name import full_name

__all__ = ["TargetState", "inspect_target"]

_SYSTEM = "information_schema.TABLES WHERE TABLE_SCHEMA"


@dataclass(slots=True)
class TargetState:
    """The requested names at the target: existing tables, missing databases.

    `kinds`: TABLE, VIEW, SEQUENCE, as in DROP. `stuck`: why an existing one can't be set aside, by
    name.
    """

    tables: list[Name] = field(default_factory=list)
    kinds: dict[Name, str] = field(default_factory=dict)
    new_schemas: list[str] = field(default_factory=list)
    not_replaceable: dict[Name, str] = field(default_factory=dict)


def inspect_target(session: MySQLSession, names: Sequence[Name]) -> TargetState:
    """Return which of these (schema, table) exist. Raises DownstreamError."""
    wanted = {(folded(schema), folded(name)) for schema, name in names}
    schemas = {schema for schema, _ in names}
    there = {
        folded(str(name))
        for (name,) in session.query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    }
    found = TargetState(
        new_schemas=sorted(schema for schema in schemas if folded(schema) not in there)
    )
    for schema in sorted(schemas):
        for name, kind in session.query(
            f"SELECT TABLE_NAME, TABLE_TYPE FROM {_SYSTEM} = %s ORDER BY TABLE_NAME", (schema,)
        ):
            if (folded(schema), folded(str(name))) in wanted:
                found.tables.append((schema, str(name)))
                found.kinds[schema, str(name)] = str(kind).removeprefix("BASE ")
                if why := _why_not_replaceable(session, schema, str(name), str(kind)):
                    found.not_replaceable[schema, str(name)] = why
    return found


def _why_not_replaceable(session: MySQLSession, schema: str, name: str, kind: str) -> str:
    if kind != "BASE TABLE":
        return f"it is no table but a {kind.lower()}"
    if session.query(
        "SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND"
        " EVENT_OBJECT_TABLE = %s LIMIT 1",
        (schema, name),
    ):
        return "it has triggers"
    referring = session.query(
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE"
        " UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s LIMIT 1",
        (schema, name),
    )
    return f"{full_name(*referring[0])} has a foreign key to it" if referring else ""
