"""Execute DDL jobs downstream.

Statements are generated from the job: its type, the tables before it and those after it. Its text
is never used, as what it means depends on the session that it was written in. What a downstream
can't hold takes another form or is excluded, with a warning. What can't be executed at all raises
DdlError with a hint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from sluice.errors import SluiceError
from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import literal, quote_name, quote_table
from sluice.etl.changes.formats.table_fallbacks import (
    Fallback,
    describe_fallback,
    with_server_computed,
)
from sluice.etl.changes.rules import commit_time
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._alter import alterations, drop_foreign_keys
from sluice.etl.downstream.ddl._attempts import execute_first_accepted
from sluice.etl.downstream.ddl._conversions import CannotConvert
from sluice.etl.downstream.ddl._convert import ColumnConverter
from sluice.etl.downstream.ddl._generate import create_table
from sluice.etl.downstream.ddl._limits import unnameable_names
from sluice.etl.downstream.ddl._other_objects import (
    change_schemas,
    create_optional,
    drop_optional,
    drop_schema,
)
from sluice.etl.downstream.ddl._reconcile import CannotReconcile, reconcile
from sluice.etl.downstream.ddl._recycle import RecycleBin
from sluice.etl.downstream.ddl._session import ddl_session
from sluice.etl.downstream.ddl._shared_table import (
    add_lacking_columns,
    already_executed,
    structure_differences,
)
from sluice.etl.downstream.ddl._source_rows import fill_added_columns, move_sources
from sluice.etl.downstream.ddl._state import actual_columns, fingerprint
from sluice.etl.downstream.ddl._table_exchanges import (
    exchange_partition,
    rename_tables,
    swap_rows,
    swaps_rows,
)
from sluice.tidb.ddl_actions import RENAMES, Action
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import argument

ALREADY_EXISTS = "is there already: taken as done"
"""The end of a warning when a table that was to be created exists and is the same."""


class DdlError(SluiceError):
    """A DDL statement that can't be executed downstream.

    It names the statement, job id, commit_ts, the server's error and ways out.
    """

    hint = (
        "repair the downstream and let the task go on, or decide: `sluice ddl skip` or `sluice ddl"
        " replace`"
    )


_SWAP_ACTIONS = RENAMES | {Action.EXCHANGE_PARTITION, Action.RECOVER_TABLE, Action.TRUNCATE_TABLE}
# They run several statements, and find out themselves which of them are still to run.
_REPEATABLE_ACTIONS = {Action.DROP_SCHEMA, Action.RECOVER_SCHEMA, Action.TRUNCATE_TABLE}
_HINT = (
    "make the statement possible downstream and let the task go on; or bring the downstream to the"
    " same result by hand, then `sluice ddl skip {0}`; or have other statements executed in its"
    " place: `sluice ddl replace {0} --sql '...'`"
)

_ROW_IDS_DIFFER_REASON = (
    "while it ran, TiDB wrote rows into the old partition under one hidden row id and into the new"
    " one under another. Many versions of TiDB (its issue 59680) then keep such rows twice or lose"
    " them, and no binlog shows it"
)
_GONE_ROWS_REASON = (
    "values of {} don't fit: {}. [[filter.columns]] has rows stay there that are gone upstream, of"
    " which TiDB knew nothing when it executed the statement"
)
_COPY_AGAIN_HINT = (
    "execute the statement: `sluice ddl replace {0} --sql '...'`; then compare the table with the"
    " upstream and bring it what differs: `sluice backfill --table {1}`"
)


class DdlExecutor:
    """Execute DDL jobs through a sink's session.

    Statements commit implicitly, so the caller keeps a DDL marker (`sinks._idempotent_ddl`).
    """

    def __init__(self, session: MySQLSession, keep_dropped_s: int = 24 * 3600) -> None:
        """Keep dropped tables for RECOVER TABLE for `keep_dropped_s` of upstream time."""
        self._session = session
        self.recycle = RecycleBin(session, keep_dropped_s)
        self._converter = ColumnConverter(session)
        self._special: dict[int, Callable[[ScopedDdl], list[str]]] = {
            Action.CREATE_SCHEMA: lambda ddl: change_schemas(session, ddl),
            Action.MODIFY_SCHEMA_CHARSET: lambda ddl: change_schemas(session, ddl),
            Action.DROP_SCHEMA: lambda ddl: drop_schema(session, self.recycle, ddl),
            Action.CREATE_TABLE: self._create,
            Action.CREATE_TABLES: self._create,
            Action.DROP_TABLE: self._drop_table,
            Action.TRUNCATE_TABLE: self._truncate,
            Action.RENAME_TABLE: self._rename,
            Action.RENAME_TABLES: self._rename,
            Action.CREATE_VIEW: lambda ddl: create_optional(session, ddl),
            Action.DROP_VIEW: lambda ddl: drop_optional(session, ddl),
            Action.CREATE_SEQUENCE: lambda ddl: create_optional(session, ddl),
            Action.ALTER_SEQUENCE: lambda ddl: create_optional(session, ddl),
            Action.DROP_SEQUENCE: lambda ddl: drop_optional(session, ddl),
            Action.RECOVER_TABLE: self._recover,
            Action.EXCHANGE_PARTITION: self._exchange,
            Action.FLASHBACK_CLUSTER: self._unsupported,
            Action.RECOVER_SCHEMA: self._recover_schema,
        }

    def fingerprint(self, ddl: ScopedDdl) -> str:
        """Return a digest of what the DDL affects, as it is downstream now.

        It differs after the statement has run, if the statement leaves a trace. Databases that
        routes need are created first: they are no trace of the statement. Raises as `execute`.
        """
        with self._errors(ddl):
            for schema in ddl.needs_schemas:
                self._session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}")
            return fingerprint(self._session, ddl, swaps=ddl.type in _SWAP_ACTIONS)

    def is_transactional(self, ddl: ScopedDdl) -> bool:
        """Return whether nothing that `execute` runs commits.

        Such a DDL may share a transaction with the checkpoint and needs no marker.
        """
        with self._errors(ddl):
            return ddl.type == Action.EXCHANGE_PARTITION and swaps_rows(self._session, ddl)

    def execute(self, ddl: ScopedDdl) -> list[str]:
        """Run the DDL, and return warnings about what was excluded or executed in another form.

        Raises DdlError, or DownstreamError when the connection failed.
        """
        with self._errors(ddl):
            self._check_names(ddl)
            if move_sources(self._session, ddl):
                return []
            if ddl.merged and self._already_executed(ddl):
                fill_added_columns(self._session, ddl)
                return [
                    f"done already, as {ddl.merged} merges tables: another of them brought the"
                    " statement before"
                ]
            if ddl.row_ids_differ:
                name = next(
                    (table.full_name for table in ddl.effect.tables.values() if table is not None),
                    "NAME",
                )
                raise self._failure(
                    ddl,
                    _ROW_IDS_DIFFER_REASON,
                    _COPY_AGAIN_HINT.format(ddl.commit_ts, argument(name)),
                )
            warnings = self._converter.convert(ddl)
            return warnings + self._run(ddl) + self._reconcile(ddl)

    def _already_executed(self, ddl: ScopedDdl) -> bool:
        with ddl_session(self._session, ddl):
            return already_executed(self._session, ddl)

    def settle(self, ddl: ScopedDdl) -> list[str]:
        """Make the result what the upstream has, after a crash in the middle of `execute`.

        Raises as `execute`.
        """
        with self._errors(ddl):
            self._check_names(ddl)
            if move_sources(self._session, ddl):
                return []
            warnings: list[str] = []
            kind = ddl.type
            if self._converter.interrupted(ddl):
                warnings = self._converter.convert(ddl)
            if kind in _REPEATABLE_ACTIONS or kind not in self._special:
                warnings += self._run(ddl)
            return warnings + self._reconcile(ddl)

    def _check_names(self, ddl: ScopedDdl) -> None:
        if not self._session.dialect.has_all_names and (names := unnameable_names(ddl)):
            listed = ", ".join(map(repr, names))
            raise self._failure(
                ddl, f"this server holds no name with characters beyond U+FFFF: {listed}"
            )

    def _run(self, ddl: ScopedDdl) -> list[str]:
        with ddl_session(self._session, ddl):
            return self._special.get(ddl.type, self._alter)(ddl)

    def reconcile_definitions(self, ddl: ScopedDdl) -> list[str]:
        """Reconcile as far as it is safe when later changes are downstream.

        Runs no statement again, and changes no row.
        """
        with self._errors(ddl), ddl_session(self._session):
            return reconcile(self._session, ddl, values=False)

    def _reconcile(self, ddl: ScopedDdl) -> list[str]:
        with ddl_session(self._session):
            warnings = reconcile(self._session, ddl)
        self._converter.finish(ddl)
        fill_added_columns(self._session, ddl)
        return warnings

    @contextlib.contextmanager
    def _errors(self, ddl: ScopedDdl) -> Iterator[None]:
        try:
            yield
        except DownstreamError as error:
            if error.transient:
                raise
            raise self._failure(ddl, str(error)) from error
        except (CannotReconcile, CannotConvert, ValueError) as error:
            raise self._failure(ddl, str(error)) from error

    def _alter(self, ddl: ScopedDdl) -> list[str]:
        """Alter tables from what they are before the job to what they are after it."""
        known = {table.id for _, table in ddl.table_pairs()}
        effect = ddl.effect.tables
        if not ddl.schema_version and not effect:
            return []  # the job found its change made already; window records omit such jobs by now
        if not effect or any(
            t is not None and t.is_base_table and i not in known for i, t in effect.items()
        ):
            raise self._failure(ddl, f"job type {ddl.type} doesn't name the tables that it changes")
        warnings: list[str] = []
        for old, table in ddl.table_pairs():
            if old.is_base_table and table.is_base_table:
                warnings += self._alter_one(ddl, old, table)
        return warnings

    def _alter_one(self, ddl: ScopedDdl, old: Table, table: Table) -> list[str]:
        made, warnings, rejection = execute_first_accepted(
            self._session,
            table,
            lambda form: alterations(self._session, form(old), form(table), ddl),
            lambda statement: self._execute(statement, ddl),
        )
        if rejection is not None:
            warnings += [
                f"executed in another form because {rejection.message}",
                *describe_fallback(with_server_computed(table), made),
            ]
        return warnings

    def _execute(self, statement: str, ddl: ScopedDdl) -> list[str]:
        """Run a statement, if need be twice.

        The second time it runs without the foreign keys that prevented it, or in a mode that
        converts values that don't fit.
        """
        try:
            self._session.execute(statement)
            return []
        except DownstreamError as error:
            # TiDB's session wasn't strict, or TiDB applied another rule.
            if error.code in server_errors.UNFIT_VALUE:
                if gone := next((t for t in ddl.before.values() if t and t.gone_column), None):
                    raise self._failure(
                        ddl, _GONE_ROWS_REASON.format(gone.full_name, error.message)
                    ) from error
                return self._lenient(statement, error)
            if error.code not in server_errors.IN_FOREIGN_KEY:
                raise
            dropped = [
                warning
                for t in ddl.before.values()
                if t
                for warning in drop_foreign_keys(self._session, t)
            ]
            self._session.execute(statement)
            return dropped

    def _lenient(self, text: str, error: DownstreamError) -> list[str]:
        self._session.query(
            "SET SESSION sql_mode = REPLACE(REPLACE(@@sql_mode, 'STRICT_TRANS_TABLES', ''),"
            " 'STRICT_ALL_TABLES', '')"
        )
        self._session.execute(text)
        return [f"values that don't fit were converted: {error.message}"]

    def _create(self, ddl: ScopedDdl) -> list[str]:
        return [
            warning
            for table in ddl.effect.tables.values()
            if table is not None
            for warning in self._create_one(ddl, table)
        ]

    def _create_one(self, ddl: ScopedDdl, table: Table) -> list[str]:
        def plan(form: Fallback) -> tuple[list[str], list[str]]:
            statement, warnings = create_table(form(table), self._session.dialect)
            return [statement], warnings

        def execute(statement: str) -> list[str]:
            self._session.execute(statement)
            return []

        try:
            made, warnings, rejection = execute_first_accepted(self._session, table, plan, execute)
        except DownstreamError as error:
            if error.transient or error.code != server_errors.TABLE_EXISTS:
                raise
            return self._check_existing(ddl, table)
        warnings += describe_fallback(table, made)
        if table.temp_table_type:
            warnings.append(
                f"{table.full_name} is temporary upstream: an empty table stands for it"
            )
        if rejection is not None:
            warnings.insert(
                0, f"{table.full_name}: created in another form because {rejection.message}"
            )
        return warnings

    def _check_existing(self, ddl: ScopedDdl, table: Table) -> list[str]:
        """Check that an existing table is the one that the DDL is to create."""
        if ddl.merged:
            by_source = table.source_column is not None
            if by_source:
                add_lacking_columns(self._session, table)
            differences = structure_differences(self._session, table, may_lack=by_source)
            if differences:
                raise self._failure(
                    ddl,
                    f"{table.full_name} is there already, merged from several tables"
                    f" ({ddl.merged}), but with another structure: {'; '.join(differences)}",
                )
            return []
        names = {folded(column.name) for column in actual_columns(self._session, table)}
        wanted = {
            folded(column.name): column
            for column in table.columns
            if column.public and not column.hidden
        }
        if not names <= wanted.keys() or any(
            not wanted[name].virtual or wanted[name].computed for name in wanted.keys() - names
        ):
            raise self._failure(ddl, f"{table.full_name} is there already and has other columns")
        return [f"{table.full_name} {ALREADY_EXISTS}"]

    def _drop_table(self, ddl: ScopedDdl) -> list[str]:
        # The job has names in lower case; the table has them as they are written.
        schema, name = ddl.schema_name, ddl.table_name
        before = ddl.before
        warnings: list[str] = []
        for table_id, left in ddl.effect.tables.items():
            if left is None:
                table = before.get(table_id)
                names = (table.schema_name, table.name) if table else (schema, name)
                warnings += self.recycle.drop(*names, table_id, ddl.commit_ts)
        return warnings

    def _recover(self, ddl: ScopedDdl) -> list[str]:
        for table_id, table in ddl.effect.tables.items():
            if table is None or not table.is_base_table or actual_columns(self._session, table):
                continue
            if not self.recycle.recover(table.schema_name, table.name, table_id):
                raise self._failure(
                    ddl,
                    f"the rows of {table.full_name} are not in {self._session.recycle_schema}: they"
                    " were dropped too long ago; copy the table from the upstream as of this"
                    " commit_ts",
                )
        return []

    def _recover_schema(self, ddl: ScopedDdl) -> list[str]:
        change_schemas(self._session, replace(ddl, type=Action.CREATE_SCHEMA))
        return self._recover(ddl)

    def _truncate(self, ddl: ScopedDdl) -> list[str]:
        old = next((i for i, t in ddl.effect.tables.items() if t is None), 0)
        warnings: list[str] = []
        for table in ddl.effect.tables.values():
            if table is not None and table.deletion_mark is not None:
                self._mark_all(table, table.deletion_mark.name, ddl.commit_ts)
            elif table is not None and table.history:
                self._mark_all(table, table.history[1], ddl.commit_ts)
            elif table is not None and not table.temp_table_type:
                warnings += self.recycle.truncate(table.schema_name, table.name, old, ddl.commit_ts)
        return warnings

    def _mark_all(self, table: Table, column: str, commit_ts: int) -> None:
        """Mark all rows as deleted that aren't yet: what an interrupted run has done stays."""
        name, when = quote_name(column), literal(commit_time(commit_ts))
        self._session.execute(
            f"UPDATE {quote_table(table)} SET {name} = {when} WHERE {name} IS NULL"
        )

    def _exchange(self, ddl: ScopedDdl) -> list[str]:
        (swap_rows if self.is_transactional(ddl) else exchange_partition)(self._session, ddl)
        return []

    def _rename(self, ddl: ScopedDdl) -> list[str]:
        return rename_tables(self._session, ddl)

    def _unsupported(self, ddl: ScopedDdl) -> list[str]:
        raise self._failure(ddl, "it brings back rows that are in no binlog")

    def _failure(self, ddl: ScopedDdl, reason: str, hint: str = "") -> DdlError:
        return DdlError(
            f"{ddl.title} in {ddl.schema_name}: {reason}. Statement: {ddl.query[:2000]}.",
            hint=hint or _HINT.format(ddl.commit_ts),
        )
