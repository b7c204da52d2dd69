"""DDL jobs executed downstream.

What a job means is known from the job (its type, the tables it leaves behind), never from its text. Statements whose text matters
(ALTER TABLE and the like) run as TiDB wrote them, with the spelling adapted; the others are generated. What a downstream can't
hold is left out and reported as a warning; what can't be done at all is a DdlError that says how to go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from etl._ddl_generate import column_definition, create_table, index_definition, table_options
from etl._ddl_recycle import RECYCLE_SCHEMA, RecycleBin
from etl._ddl_state import actual_columns, fingerprint, wrong_collations
from etl._ddl_text import adapt, collation_name, exchanged_partition
from etl._sql_text import columns_text, quote_name, quote_table
from etl.filters import Filter
from etl.mysql import DownstreamError, MySQLSession, is_transient
from upstream.history import IGNORED_ACTIONS
from upstream.schema import STATE_DELETE_ONLY, STATE_PUBLIC, Column, Schema, Table

__all__ = ["RECYCLE_SCHEMA", "TRUNCATE_TABLE", "DdlError", "DdlExecutor", "skip_reason"]

CREATE_SCHEMA, DROP_SCHEMA, CREATE_TABLE, DROP_TABLE = 1, 2, 3, 4
DROP_COLUMN, DROP_COLUMNS, TRUNCATE_TABLE, RENAME_TABLE = 6, 38, 11, 14
CREATE_VIEW, DROP_VIEW, RECOVER_TABLE, ALTER_SCHEMA = 21, 24, 25, 26
CREATE_SEQUENCE, ALTER_SEQUENCE, DROP_SEQUENCE = 34, 35, 36
EXCHANGE_PARTITION, RENAME_TABLES, CREATE_TABLES, FLASHBACK_CLUSTER, RECOVER_SCHEMA = 42, 47, 60, 62, 63
_MEANINGLESS = {
    16: "SHARD_ROW_ID_BITS", 30: "TiFlash replicas", 39: "AUTO_ID_CACHE", 40: "AUTO_RANDOM_BASE", 58: "statistics options",
    65: "TTL", 66: "TTL",
}  # fmt: skip
_CURRENT_TIME = "CURRENT_TIMESTAMP"

# Server errors that say the statement's outcome is there already.
_ALREADY = {1007, 1008, 1050, 1051, 1060, 1061, 1091}
# Values that don't fit the new type: TiDB converted them (its session wasn't strict, or it judged by another rule).
_DATA_ERRORS = {1264, 1265, 1292, 1366, 1406, 1690, 1441, 1411}
_WAYS_OUT = (
    "make the statement possible downstream and let the task go on; or bring the downstream to the same result by hand, then "
    "`sluice ddl skip {0}`; or have other statements executed in its place: `sluice ddl replace {0} --sql '...'`"
)


class DdlError(Exception):
    """A DDL statement that can't be executed downstream: names statement, job id, commit_ts, the server's error, ways out."""


def skip_reason(ddl: Mapping[str, Any], filters: Filter) -> str | None:
    """Why nothing is executed downstream for a DDL; None if something is."""
    kind = int(ddl.get("type") or 0)
    query = str(ddl.get("query") or "").strip().lower()
    if query.startswith("select setval"):
        return "sequence values come with the rows"
    if kind in IGNORED_ACTIONS:
        return f"job type {kind} changes nothing a downstream has"
    if kind in _MEANINGLESS:
        return f"{_MEANINGLESS[kind]} mean nothing downstream"
    if kind in (DROP_COLUMN, DROP_COLUMNS) and int(ddl.get("schema_state") or 0) == STATE_DELETE_ONLY:
        return "DROP COLUMN has only begun"
    effect = ddl.get("effect") or {}
    tables = [t for t in (effect.get("tables") or {}).values() if t]
    schemas = {t["schema_name"] for t in tables} | {s["name"] for s in (effect.get("schemas") or {}).values() if s}
    if not any(filters.wants_schema(name) for name in schemas or {str(ddl.get("schema_name") or "")}):
        return "the schema is filtered out"
    return None


class DdlExecutor:
    """Executes DDL jobs through a sink. Statements commit implicitly: the caller keeps a marker, see `etl.apply`."""

    def __init__(self, session: MySQLSession, keep_dropped_s: int = 24 * 3600) -> None:
        """`keep_dropped_s`: how long dropped tables are kept for RECOVER TABLE, in seconds of upstream time."""
        self._session = session
        self.recycle = RecycleBin(session, keep_dropped_s)
        self._special: dict[int, Callable[[Mapping[str, Any]], list[str]]] = {
            CREATE_SCHEMA: self._schema,
            ALTER_SCHEMA: self._schema,
            DROP_SCHEMA: self._drop_schema,
            CREATE_TABLE: self._create,
            CREATE_TABLES: self._create,
            DROP_TABLE: self._drop_table,
            TRUNCATE_TABLE: self._truncate,
            RENAME_TABLE: self._rename,
            RENAME_TABLES: self._rename,
            CREATE_VIEW: self._optional,
            DROP_VIEW: self._drop_optional,
            CREATE_SEQUENCE: self._optional,
            ALTER_SEQUENCE: self._optional,
            DROP_SEQUENCE: self._drop_optional,
            RECOVER_TABLE: self._recover,
            EXCHANGE_PARTITION: self._exchange,
            FLASHBACK_CLUSTER: self._impossible,
            RECOVER_SCHEMA: self._impossible,
        }

    def fingerprint(self, ddl: Mapping[str, Any]) -> str:
        """Describes what the DDL affects as it is downstream now; differs after the statement has run, if it leaves a trace."""
        return fingerprint(self._session, ddl, int(ddl["type"]) in (EXCHANGE_PARTITION, RENAME_TABLE, RENAME_TABLES, RECOVER_TABLE))

    def is_transactional(self, ddl: Mapping[str, Any]) -> bool:
        """Whether `execute` runs nothing that commits: it may share a transaction with the checkpoint and needs no marker."""
        return int(ddl["type"]) == EXCHANGE_PARTITION and self._session.is_mariadb

    def execute(self, ddl: Mapping[str, Any]) -> list[str]:
        """Run it; warnings about what was left out or done in another way. Raises DdlError, or DownstreamError when the
        connection failed."""
        try:
            warnings = self._special.get(int(ddl["type"]), self._statement)(ddl)
            return warnings + self.settle(ddl)
        except DownstreamError as error:
            if is_transient(error):
                raise
            raise self._failure(ddl, str(error)) from error

    def settle(self, ddl: Mapping[str, Any]) -> list[str]:
        """Make sure the result is what the upstream has, also after a crash in the middle of `execute`."""
        warnings = []
        for table in _tables(ddl, "effect").values():
            if table is None or not table.is_base_table:
                continue
            actual = actual_columns(self._session, table)
            names = {column.name.lower() for column in actual}
            missing = [c.name for c in table.writable_columns if c.name.lower() not in names]
            if missing:
                raise self._failure(ddl, f"{table.full_name} lacks {', '.join(missing)} downstream afterwards")
            wrong = wrong_collations(table, actual, self._session.is_mariadb)
            if wrong:
                by_name = {column.name: column for column in table.columns}
                changes = ", ".join(f"MODIFY COLUMN {column_definition(by_name[n], self._session.is_mariadb)}" for n in wrong)
                self._session.execute(f"ALTER TABLE {quote_table(table)} {changes}, {table_options(table, self._session.is_mariadb)}")
                warnings.append(f"{table.full_name}: collation of {', '.join(wrong)} set to the upstream's")
        return warnings

    def _statement(self, ddl: Mapping[str, Any]) -> list[str]:
        """Run the text, adapted; then in a mode that converts what doesn't fit; then what can be generated instead."""
        self._use(ddl)
        text = adapt(str(ddl["query"]), self._session.is_mariadb)
        moment = _moment(ddl)
        if moment:
            # Existing rows get the default of the moment at which TiDB added the column.
            self._session.query("SET SESSION timestamp = UNIX_TIMESTAMP(%s)", (moment,))
        warnings = self._run(ddl, text)
        if moment:
            self._session.query("SET SESSION timestamp = DEFAULT")
        return warnings

    def _run(self, ddl: Mapping[str, Any], text: str) -> list[str]:
        try:
            self._session.execute(text)
            return []
        except DownstreamError as error:
            if is_transient(error):
                raise
            if error.code in _ALREADY:
                return [f"{error.message}: taken as done"]
            if error.code in _DATA_ERRORS:
                return self._lenient(text, error)
            generated, warnings = self._alternative(ddl)
            if generated is None:
                raise
            for statement in generated:
                self._session.execute(statement)
            return [f"executed in another form because {error.message}", *warnings]

    def _lenient(self, text: str, error: DownstreamError) -> list[str]:
        self._session.query("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'")
        self._session.execute(text)
        self._session.connect()  # back to the session that everything else is written for
        return [f"values that don't fit were converted: {error.message}"]

    def _alternative(self, ddl: Mapping[str, Any]) -> tuple[list[str] | None, list[str]]:
        """Statements that add, drop and define columns and indexes until the table is as after the DDL, from what it is."""
        before, after = _tables(ddl, "before"), _tables(ddl, "effect")
        statements: list[str] = []
        warnings: list[str] = []
        mariadb = self._session.is_mariadb
        for table_id, table in after.items():
            if table is None or not table.is_base_table or table.partition != getattr(before.get(table_id), "partition", table.partition):
                return None, []
            actual = {column.name.lower() for column in actual_columns(self._session, table)}
            if not actual:
                return None, []
            old = before.get(table_id)
            old_columns = {c.name.lower(): c for c in old.columns} if old else {}
            wanted = [c for c in table.columns if c.public and not c.hidden]
            if any(c.id in {o.id for o in old_columns.values()} and c.name.lower() not in old_columns for c in wanted):
                return None, []  # a rename: add and drop would lose its values
            clauses = [
                f"{'MODIFY' if c.name.lower() in actual else 'ADD'} COLUMN {column_definition(c, mariadb)}"
                for c in wanted
                if c.name.lower() not in actual or (old is not None and old_columns.get(c.name.lower()) != c)
            ]
            kept = {c.name.lower() for c in wanted}
            clauses += [f"DROP COLUMN {quote_name(c.name)}" for n, c in old_columns.items() if n not in kept and n in actual]
            found = {
                str(name)
                for (name,) in self._session.query(
                    "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                    (table.schema_name, table.name),
                )
            }
            public = {("PRIMARY" if i.primary else i.name): i for i in table.indexes if i.state == STATE_PUBLIC}
            for name, index in public.items():
                if name not in found:
                    definition, warning = index_definition(table, index, mariadb)
                    clauses += [f"ADD {definition}"] if definition else []
                    warnings += [warning] if warning else []
            gone = {i.name for i in old.indexes if not i.primary} - set(public) if old else set()
            clauses += [f"DROP INDEX {quote_name(name)}" for name in sorted(gone & found)]
            if clauses:
                statements.append(f"ALTER TABLE {quote_table(table)} {', '.join(clauses)}")
        return (statements, warnings) if statements or warnings else (None, [])

    def _schema(self, ddl: Mapping[str, Any]) -> list[str]:
        for document in ((ddl.get("effect") or {}).get("schemas") or {}).values():
            schema = Schema.from_json(document)
            mariadb = self._session.is_mariadb
            options = f" CHARACTER SET {schema.charset} COLLATE {collation_name(schema.collate, mariadb)}" if schema.charset else ""
            verb = "CREATE DATABASE IF NOT EXISTS" if int(ddl["type"]) == CREATE_SCHEMA else "ALTER DATABASE"
            self._session.execute(f"{verb} {quote_name(schema.name)}{options}")
        return []

    def _drop_schema(self, ddl: Mapping[str, Any]) -> list[str]:
        self._session.execute(f"DROP DATABASE IF EXISTS {quote_name(str(ddl['schema_name']))}")
        return []

    def _create(self, ddl: Mapping[str, Any]) -> list[str]:
        warnings: list[str] = []
        tables = [t for t in _tables(ddl, "effect").values() if t is not None]
        for table in tables:
            warnings += self._create_one(ddl, table, as_written=len(tables) == 1)
        return warnings

    def _create_one(self, ddl: Mapping[str, Any], table: Table, as_written: bool) -> list[str]:
        mariadb = self._session.is_mariadb
        candidates: list[tuple[str, list[str]]] = []
        if table.temp_table_type:
            as_written = False
        if as_written:
            candidates.append((adapt(str(ddl["query"]), mariadb, table_options(table, mariadb)), []))
        candidates.append(create_table(table, mariadb))
        if table.partition:
            candidates.append(create_table(table, mariadb, partitions=False))
        first: DownstreamError | None = None
        for statement, left_out in candidates:
            try:
                self._use(ddl)
                self._session.execute(statement)
            except DownstreamError as error:
                if is_transient(error):
                    raise
                if error.code == 1050:
                    return [f"{table.full_name} is there already: taken as done"]
                first = first or error
                continue
            if table.temp_table_type:
                left_out = [*left_out, f"{table.full_name} is temporary upstream: an empty table stands for it"]
            return [f"{table.full_name}: created in another form because {first.message}", *left_out] if first else left_out
        assert first is not None
        raise first

    def _drop_table(self, ddl: Mapping[str, Any]) -> list[str]:
        schema, name = str(ddl["schema_name"]), str(ddl["table_name"])
        warnings: list[str] = []
        for table_id, gone in ((ddl.get("effect") or {}).get("tables") or {}).items():
            if gone is None:
                warnings += self.recycle.drop(schema, name, int(table_id), int(ddl["commit_ts"]))
        return warnings

    def _recover(self, ddl: Mapping[str, Any]) -> list[str]:
        for table_id, table in _tables(ddl, "effect").items():
            if table is not None and not self.recycle.recover(table.schema_name, table.name, table_id):
                raise self._failure(ddl, f"the rows of {table.full_name} are not in {RECYCLE_SCHEMA}: they were dropped too long ago, or "
                                         "emptied by TRUNCATE; copy the table from the upstream as of this commit_ts")  # fmt: skip
        return []

    def _truncate(self, ddl: Mapping[str, Any]) -> list[str]:
        for table in _tables(ddl, "effect").values():
            if table is not None and not table.temp_table_type:
                self._session.execute(f"TRUNCATE TABLE {quote_table(table)}")
        return []

    def _exchange(self, ddl: Mapping[str, Any]) -> list[str]:
        """MariaDB's EXCHANGE PARTITION (10.11.19) never ends when the ordinary table holds rows: there the rows are swapped."""
        if not self.is_transactional(ddl):
            return self._statement(ddl)
        tables = [table for table in _tables(ddl, "effect").values() if table is not None]
        partitioned, ordinary = (next(t for t in tables if bool(t.partition) is want) for want in (True, False))
        names = columns_text(ordinary.writable_columns)
        partition = f"{quote_table(partitioned)} PARTITION ({exchanged_partition(str(ddl['query']))})"
        kept = f"{quote_name(ordinary.schema_name)}.{quote_name('sluice_exchange')}"
        self._session.execute(f"CREATE TEMPORARY TABLE {kept} AS SELECT {names} FROM {partition}")
        self._session.execute(f"DELETE FROM {partition}")
        self._session.execute(f"INSERT INTO {quote_table(partitioned)} ({names}) SELECT {names} FROM {quote_table(ordinary)}")
        self._session.execute(f"DELETE FROM {quote_table(ordinary)}")
        self._session.execute(f"INSERT INTO {quote_table(ordinary)} ({names}) SELECT {names} FROM {kept}")
        self._session.execute(f"DROP TEMPORARY TABLE {kept}")
        return []

    def _rename(self, ddl: Mapping[str, Any]) -> list[str]:
        before, after = _tables(ddl, "before"), _tables(ddl, "effect")
        pairs = [(before.get(i), table) for i, table in after.items() if table is not None]
        if pairs and all(old is not None for old, _ in pairs):
            renames = ", ".join(f"{quote_table(old)} TO {quote_table(new)}" for old, new in pairs if old)
            try:
                self._session.execute(f"RENAME TABLE {renames}")
                return []
            except DownstreamError as error:
                if is_transient(error) or len(pairs) == 1:
                    raise
        return self._statement(ddl)

    def _optional(self, ddl: Mapping[str, Any]) -> list[str]:
        """Views and sequences hold no rows: what the downstream doesn't take is left out."""
        try:
            return self._statement(ddl)
        except DownstreamError as error:
            if is_transient(error):
                raise
            return [f"left out: {ddl['schema_name']}.{ddl['table_name']}: {error.message}"]

    def _drop_optional(self, ddl: Mapping[str, Any]) -> list[str]:
        kind = "VIEW" if int(ddl["type"]) == DROP_VIEW else "SEQUENCE"
        name = f"{quote_name(str(ddl['schema_name']))}.{quote_name(str(ddl['table_name']))}"
        try:
            self._session.execute(f"DROP {kind} IF EXISTS {name}")
            return []
        except DownstreamError as error:
            if is_transient(error):
                raise
            return [f"{kind} {name} was not dropped: {error.message}"]

    def _impossible(self, ddl: Mapping[str, Any]) -> list[str]:
        raise self._failure(ddl, "it brings back rows that are in no binlog")

    def _use(self, ddl: Mapping[str, Any]) -> None:
        if ddl.get("schema_name"):
            self._session.query(f"USE {quote_name(str(ddl['schema_name']))}")

    def _failure(self, ddl: Mapping[str, Any], reason: str) -> DdlError:
        return DdlError(
            f"DDL job {ddl.get('job_id')} at commit_ts {ddl['commit_ts']} in {ddl.get('schema_name')}: {reason}. Statement: "
            f"{str(ddl.get('query'))[:2000]} Way out: {_WAYS_OUT.format(ddl['commit_ts'])}"
        )


def _tables(ddl: Mapping[str, Any], part: str) -> dict[int, Table | None]:
    source = (ddl.get("effect") or {}).get("tables") if part == "effect" else ddl.get(part)
    return {int(i): Table.from_json(t) if t else None for i, t in (source or {}).items()}


def _moment(ddl: Mapping[str, Any]) -> str:
    """The value that CURRENT_TIMESTAMP had for existing rows when a column was added, as TiDB noted it; "" if it didn't."""
    before = {c.id for t in _tables(ddl, "before").values() if t for c in t.columns}
    for table in _tables(ddl, "effect").values():
        for column in table.columns if table else ():
            if column.id not in before and _is_current_time(column) and re.match(r"\d{4}-\d\d-\d\d ", str(column.origin_default)):
                return str(column.origin_default)
    return ""


def _is_current_time(column: Column) -> bool:
    return isinstance(column.default, str) and column.default.upper().startswith(_CURRENT_TIME)
