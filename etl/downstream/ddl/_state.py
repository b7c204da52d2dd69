"""Inspect the downstream: fingerprints of the objects a DDL affects, and columns as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sluice.etl.changes import server_errors
from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.ddl_text import collation_name
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table

_FINGERPRINTS = (
    (
        "SELECT SCHEMA_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE"
        " SCHEMA_NAME IN ({schemas}) ORDER BY 1"
    ),
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, TABLE_COLLATION, CREATE_OPTIONS,"
        " TABLE_COMMENT FROM information_schema.TABLES WHERE {tables} ORDER BY 1, 2"
    ),
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, ORDINAL_POSITION, COLUMN_DEFAULT,"
        " IS_NULLABLE, COLUMN_TYPE, COLLATION_NAME, EXTRA, COLUMN_COMMENT, GENERATION_EXPRESSION"
        " FROM information_schema.COLUMNS WHERE {tables} ORDER BY 1, 2, 4"
    ),
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, COLUMN_NAME, SUB_PART,"
        " NON_UNIQUE FROM information_schema.STATISTICS WHERE {tables} ORDER BY 1, 2, 3, 4"
    ),
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, PARTITION_NAME, PARTITION_METHOD, PARTITION_EXPRESSION,"
        " PARTITION_DESCRIPTION FROM information_schema.PARTITIONS WHERE {tables} ORDER BY 1, 2, 3"
    ),
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, VIEW_DEFINITION FROM information_schema.VIEWS WHERE"
        " {tables} ORDER BY 1, 2"
    ),
)


_ENDED_JOB_STATES = {"synced", "cancelled", "rollback done"}


@dataclass(frozen=True, slots=True)
class ActualColumn:
    """A downstream column.

    `collation` is "" for those that hold no text; `data_type` as in ``varchar``; `generated`: it is
    computed.
    """

    name: str
    collation: str
    data_type: str = ""
    generated: bool = False


IndexShape = tuple[bool, tuple[tuple[str, int], ...]]
"""True if it is unique, and its (column in lower case, prefix length or 0)."""


class ActualTable(Protocol):
    """A table as it is before a statement."""

    def columns(self) -> list[ActualColumn]:
        """Return its columns, [] if there is no such table."""

    def indexes(self) -> dict[str, IndexShape]:
        """Return its indexes by their names in lower case."""

    def partitions(self) -> list[str]:
        """Return names of its partitions in lower case, in their order."""

    def has_foreign_key(self, name: str) -> bool:
        """Return whether it has a foreign key of this name."""


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A table as the downstream has it; each method asks the server."""

    session: MySQLSession
    table: Table

    def columns(self) -> list[ActualColumn]:
        return actual_columns(self.session, self.table)

    def indexes(self) -> dict[str, IndexShape]:
        return actual_indexes(self.session, self.table)

    def partitions(self) -> list[str]:
        return actual_partitions(self.session, self.table)

    def has_foreign_key(self, name: str) -> bool:
        return has_foreign_key(self.session, self.table, name)


def affected_names(ddl: DdlJob) -> tuple[set[str], set[str]]:
    """Return (schemas, tables) that a DDL names, before or after it."""
    schemas, tables = {ddl.schema_name}, {ddl.table_name}
    schemas |= {schema.name for schema in ddl.effect.schemas.values() if schema is not None}
    for table in (*ddl.effect.tables.values(), *ddl.before.values()):
        if table is not None:
            schemas.add(table.schema_name)
            tables.add(table.name)
    return schemas - {""}, tables - {""}


def fingerprint(session: MySQLSession, ddl: DdlJob, *, swaps: bool) -> str:
    """Return a hash over the definitions of everything the DDL affects.

    With `swaps` also over which table is which. Not over AUTO_INCREMENT: rows move it, and MySQL's
    value may be a day old.
    """
    schemas, tables = affected_names(ddl)
    # elsewhere nothing has such a name, and comparing with one is an error (1267)
    if not session.dialect.is_tidb:
        schemas, tables = (
            {name for name in names if max(name) <= "\uffff"} for names in (schemas, tables)
        )
    _check_nothing_runs(session, schemas)
    in_schemas = _placeholders(schemas)
    where = {
        "schemas": in_schemas,
        "tables": f"TABLE_SCHEMA IN ({in_schemas}) AND TABLE_NAME IN ({_placeholders(tables)})",
    }
    digest = hashlib.sha256()
    for statement in _FINGERPRINTS:
        args = [*sorted(schemas), *(sorted(tables) if "{tables}" in statement else ())]
        if not schemas or ("{tables}" in statement and not tables):
            continue
        digest.update(repr(session.query(statement.format(**where), args)).encode())
    if swaps and schemas:
        # Swaps leave every definition as it was; the server's own ids show which is which. Needs
        # the PROCESS privilege.
        prefixes = " OR ".join(["NAME LIKE %s"] * len(schemas))
        args = [_like_pattern(schema) + "/%" for schema in sorted(schemas)]
        digest.update(
            repr(session.query(session.dialect.table_ids.format(prefixes=prefixes), args)).encode()
        )
    return digest.hexdigest()[:32]


def _check_nothing_runs(session: MySQLSession, schemas: Iterable[str]) -> None:
    """Raise DownstreamError, transient, while a DDL statement runs in one of the schemas.

    Where a statement goes on after its session has ended, only its end shows whether it has run.
    """
    query = session.dialect.running_ddl
    wanted = {folded(schema) for schema in schemas}
    if query and any(
        str(state) not in _ENDED_JOB_STATES and str(schema).lower() in wanted
        for state, schema in session.query(query)
    ):
        raise DownstreamError(
            server_errors.LOCK_WAIT_TIMEOUT,
            f"{session.address}: a DDL statement of a session before is still running there",
        )


def actual_columns(session: MySQLSession, table: Table) -> list[ActualColumn]:
    """Return the downstream table's columns, [] if there is no such table."""
    rows = session.query(
        "SELECT COLUMN_NAME, COALESCE(COLLATION_NAME, ''), DATA_TYPE,"
        " COALESCE(GENERATION_EXPRESSION, '') <> '' FROM information_schema.COLUMNS WHERE"
        " TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        (table.schema_name, table.name),
    )
    return [
        ActualColumn(str(name), str(collation), str(kind).lower(), bool(int(generated)))
        for name, collation, kind, generated in rows
    ]


def moving_columns(session: MySQLSession, table: Table) -> list[str]:
    """Return quoted names of downstream columns that every UPDATE sets to the clock.

    An UPDATE that sets them itself doesn't. They are the upstream's, and those that a server
    without explicit_defaults_for_timestamp has made so by itself.
    """
    rows = session.query(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME"
        " = %s AND LOWER(EXTRA) LIKE '%on update%'",
        (table.schema_name, table.name),
    )
    return [quote_name(str(name)) for (name,) in rows]


def actual_indexes(session: MySQLSession, table: Table) -> dict[str, IndexShape]:
    """Return the downstream table's indexes by their names in lower case."""
    rows = session.query(
        "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, COALESCE(SUB_PART, 0) FROM"
        " information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY"
        " INDEX_NAME, SEQ_IN_INDEX",
        (table.schema_name, table.name),
    )
    found: dict[str, IndexShape] = {}
    for name, not_unique, column, length in rows:
        _, columns = found.get(folded(str(name)), (False, ()))
        found[folded(str(name))] = (
            not int(not_unique),
            (*columns, (folded(str(column)), int(length))),
        )
    return found


def actual_partitions(session: MySQLSession, table: Table) -> list[str]:
    """Return names of the downstream table's partitions in lower case, in their order.

    [] if it has none.
    """
    rows = session.query(
        "SELECT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = %s AND"
        " TABLE_NAME = %s AND PARTITION_NAME IS NOT NULL ORDER BY PARTITION_ORDINAL_POSITION",
        (table.schema_name, table.name),
    )
    return [folded(str(name)) for (name,) in rows]


def has_foreign_key(session: MySQLSession, table: Table, name: str) -> bool:
    """Return whether the downstream's table has a foreign key of this name."""
    return bool(
        session.query(
            "SELECT 1 FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = %s"
            " AND TABLE_NAME = %s AND CONSTRAINT_NAME = %s",
            (table.schema_name, table.name, name),
        )
    )


def wrong_collations(table: Table, actual: Iterable[ActualColumn], dialect: Dialect) -> list[str]:
    """Return names of text columns whose collation isn't the upstream's.

    Their keys would take other values for equal. Where an operator has put bytes in the place of
    text, since text can't hold what the upstream has, nothing is compared wrongly.
    """
    found = {column.name.lower(): column.collation for column in actual if column.collation}
    wrong = []
    for column in table.columns:
        if (
            not column.public
            or column.hidden
            or column.generated
            or column.kind not in ("text", "enum", "set")
        ):
            continue
        # its character set is binary; the sink checks that before it writes
        if column.has_blank_ends:
            continue
        fine = {
            _same_charset_name(c) for c in (collation_name(column.collate, dialect), column.collate)
        }
        if (
            column.collate
            and _same_charset_name(found.get(column.name.lower(), column.collate)) not in fine
        ):
            wrong.append(column.name)
    return wrong


def _same_charset_name(collation: str) -> str:
    return collation.lower().replace("utf8mb3_", "utf8_").replace("utf8mb4_uca1400", "uca1400")


def _placeholders(values: Iterable[str]) -> str:
    return ", ".join("%s" for _ in values)


def _like_pattern(name: str) -> str:
    """Return a LIKE pattern for a schema name as InnoDB's dictionary spells it.

    Characters it encodes match anything.
    """
    return "".join(char if char.isascii() and char.isalnum() else "%" for char in name)
