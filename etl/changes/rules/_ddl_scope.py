"""Apply filters and routes to a DDL job: what of it goes downstream, under which names.

A job may be about several tables (RENAME TABLE, DROP DATABASE, batches of CREATE TABLE): the
unwanted ones are taken out of it. What can't be cut in half without the downstream missing rows, or
keeping rows it shouldn't, is a ScopeError that names the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.etl.changes.formats.ddl_defaults import is_cut
from sluice.etl.changes.formats.ddl_partitions import plain_name
from sluice.etl.changes.rules._ddl_names import rename_database, rename_in_query, rename_tables
from sluice.etl.changes.rules._ddl_rule_checks import RuleChecks, ScopeError
from sluice.etl.changes.rules._source_union import UnionError, union_behind
from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.history_tables import with_history_columns
from sluice.etl.changes.rules.routes import RouteError, Routes, Target
from sluice.etl.changes.steps import MovedSource, ScopedDdl
from sluice.tidb.ddl_actions import REMOVES_ROWS, RENAMES, Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Schema, Table
from sluice.tidb.table_name import full_name

_ACTIONS_WITHOUT_SCHEMA = {Action.FLASHBACK_CLUSTER}


@dataclass(frozen=True, slots=True)
class ScopeResult:
    """A scope result; `ddl`: the job as it concerns the downstream, with `before`.

    None if nothing is to be executed. `touches`: rows that are replicated belong to a table the job
    changes, so what came before must go downstream first.
    """

    ddl: ScopedDdl | None
    touches: bool
    warnings: tuple[str, ...] = ()


def scope_ddl(
    ddl: DdlJob, before: Mapping[int, Table], filters: Filter, routes: Routes
) -> ScopeResult:
    """Filter and route a DDL job; `before` has its tables as they were. Raises ScopeError."""
    return _DdlScoper(ddl, before, filters, routes).result()


class _DdlScoper:
    def __init__(
        self, ddl: DdlJob, before: Mapping[int, Table], filters: Filter, routes: Routes
    ) -> None:
        self._ddl = ddl
        self._kind = ddl.type
        self._filters = filters
        self._routes = routes
        self._schemas = ddl.effect.schemas
        self._after = dict(ddl.effect.tables)
        self._before = {i: table for i, table in before.items() if i in self._after}
        self._checks = RuleChecks(ddl, self._before, self._after, filters, routes)
        self._warnings: list[str] = []
        self._merged: list[str] = []
        self._moved_sources: list[MovedSource] = []
        self._renamed_for_source: list[tuple[str, str]] = []
        self._left_out: set[str] = set()
        self._shapes = False

    def result(self) -> ScopeResult:
        schema, name, query = self._ddl.schema_name, self._ddl.table_name, self._ddl.query
        kept = [i for i in self._after if self._is_wanted(i)]
        touches = bool(kept)
        whole = (
            self._filters.wants_schema(schema)
            if schema or self._kind not in _ACTIONS_WITHOUT_SCHEMA
            else True
        )
        if self._schemas and not whole:
            self._schemas = {}
        if (
            not self._after
            and not self._schemas
            and not (self._filters.wants_table(schema, name) if name else whole)
        ):
            return ScopeResult(None, touches=False)
        if (self._after or self._ddl_had_schemas()) and not kept and not self._schemas:
            return ScopeResult(None, touches=False)
        if is_cut(query):
            self._check_cut(kept)
        for table_id in kept:
            self._check_crossing(table_id)
            self._checks.check_row_rules(table_id)
        for table_id in kept if self._filters.columns else ():
            self._checks.check_column_rules(table_id)
        after_names = [self._after[i] or self._before.get(i) for i in kept]
        for one, other in {(t.schema_name, t.name) for t in after_names if t} or {(schema, name)}:
            rule = self._filters.ignoring_rule(one, other, query)
            if rule is not None:
                return ScopeResult(None, touches=touches)
        kept = [i for i in kept if self._may_run(i)]
        self._leave_columns_out(kept)
        if touches and not kept and not self._schemas and not self._moved_sources:
            return ScopeResult(None, touches=True, warnings=tuple(self._warnings))
        return ScopeResult(self._scoped(kept), touches=True, warnings=tuple(self._warnings))

    def _check_cut(self, kept: list[int]) -> None:
        """Check that no rule, and no pairing of columns, needs a text that landing has cut."""
        needs = ""
        for table_id in kept:
            old, new = self._before.get(table_id), self._after[table_id]
            named = [t for t in (old, new) if t is not None]
            if any(
                rule.statements and rule.names.matches(table.schema_name, table.name)
                for rule in self._filters.events
                for table in named
            ):
                needs = "by which event rules select statements"
            if old is not None and new is not None and self._kind != Action.MODIFY_COLUMN:
                was, becomes = ({c.id for c in t.columns} for t in (old, new))
                if was - becomes and becomes - was:
                    needs = "which alone names columns that get another number and name"
        if needs:
            ts = self._ddl.commit_ts
            raise self._error(
                "landing has cut its text, which had a value of a masked column in it, and"
                f" {needs}",
                f"write what is to run downstream (`sluice ddl replace {ts} --sql '...'`), or",
            )

    def _ddl_had_schemas(self) -> bool:
        return bool(self._ddl.effect.schemas)

    def _is_wanted(self, table_id: int) -> bool:
        tables = [t for t in (self._before.get(table_id), self._after[table_id]) if t is not None]
        return any(self._filters.wants_table(t.schema_name, t.name) for t in tables)

    def _check_crossing(self, table_id: int) -> None:
        """Check a rename or an exchange between what is replicated and what isn't."""
        old, new = self._before.get(table_id), self._after[table_id]
        if self._kind == Action.EXCHANGE_PARTITION:
            unwanted = [
                t
                for t in (*self._before.values(), *self._after.values())
                if t and not self._filters.wants_table(t.schema_name, t.name)
            ]
            if unwanted:
                raise self._error(
                    f"it exchanges rows with {unwanted[0].full_name}, which is not replicated"
                    f" ({self._filters.reason(unwanted[0].schema_name, unwanted[0].name)})",
                    "change the rule so that both tables are replicated or none, or",
                )
        if old is None or new is None:
            return
        wanted = [self._filters.wants_table(t.schema_name, t.name) for t in (old, new)]
        if all(wanted):
            return
        if wanted[0]:
            raise self._error(
                f"it takes {old.full_name} out of what is replicated: for {new.full_name},"
                f" {self._filters.reason(new.schema_name, new.name)}",
                f"add a rule for {new.full_name} if it is to be replicated on, or",
            )
        raise self._error(
            f"it makes {old.full_name}, which is not replicated"
            f" ({self._filters.reason(old.schema_name, old.name)}), {new.full_name}, which is: its"
            " rows are not downstream",
            f"bring the rows of {new.full_name} as of this commit_ts to the downstream by hand and",
        )

    def _leave_columns_out(self, kept: list[int]) -> None:
        """Take out of the tables, before and after the DDL, the columns that rules leave out."""
        for table_id in kept if self._filters.columns else ():
            for side in (self._before, self._after):
                table = side.get(table_id)
                if table is not None:
                    narrowed = self._checks.narrowed(table)
                    side[table_id] = with_history_columns(narrowed)
                    self._shapes |= any(
                        column.mask or (column.public and column.upstream_name)
                        for column in narrowed.columns
                    )
                    shown = {column.id for column in narrowed.columns if column.public}
                    self._left_out |= {
                        column.name
                        for column in table.columns
                        if column.public and column.id not in shown
                    }

    def _may_run(self, table_id: int) -> bool:
        """Return whether the job is to be executed for a table, concerning merged targets."""
        old, new = self._before.get(table_id), self._after[table_id]
        targets = [self._checks.target(t) for t in (old, new) if t is not None]
        merged = next((t for t in targets if t.is_merged), None)
        if merged is None:
            return True
        place = full_name(merged.schema, merged.table)
        if merged.source_column and self._moves_source(merged, old, new):
            return False
        if self._kind in RENAMES and old is not None and new is not None:
            if targets[0].place == targets[1].place:
                return False  # as before, only the source has another name
            raise self._error(
                f"it renames {old.full_name} to {new.full_name}, but {place} is merged from several"
                f" tables ({merged.sources}), whose rows can't be distinguished",
                "move the rows downstream by hand and",
            )
        if self._kind == Action.EXCHANGE_PARTITION:
            raise self._error(
                f"{place} is merged from several tables ({merged.sources}): which rows to exchange"
                " is unknown",
                "exchange the rows downstream by hand and",
            )
        removes = self._kind in REMOVES_ROWS
        if removes or self._kind == Action.RECOVER_TABLE:
            source = (old or new).full_name if (old or new) else place  # type: ignore[union-attr]
            if removes and (new is None or self._kind != Action.TRUNCATE_TABLE):
                self._warnings.append(
                    f"{self._ddl.title} would remove rows of {source}: not executed, as {place} is"
                    f" merged from several tables ({merged.sources}); its rows stay"
                )
            return False
        if old is None or new is not None:
            self._merged.append(merged.sources)
        return True

    def _moves_source(self, merged: Target, old: Table | None, new: Table | None) -> bool:
        """Note what becomes of the rows of one source in a merged target; False for nothing."""
        if self._kind in (Action.RECOVER_TABLE, Action.RECOVER_SCHEMA):
            name = (new or old).full_name if (new or old) else ""  # type: ignore[union-attr]
            raise self._error(
                f"it brings back rows of {name}, which were removed from"
                f" {full_name(merged.schema, merged.table)}",
                "copy its rows (`sluice backfill`) and",
            )
        place = merged.schema, merged.table, merged.source_column
        if self._kind in RENAMES and old is not None and new is not None:
            goal = self._checks.target(new)
            if goal.place != merged.place:
                return False
            if old.full_name != new.full_name:
                self._moved_sources.append(MovedSource(*place, old.full_name, new.full_name))
            return True
        if self._kind in REMOVES_ROWS and (old is None or new is None):
            if old is not None:
                self._moved_sources.append(MovedSource(*place, old.full_name))
            return True
        return False

    def _scoped(self, kept: list[int]) -> ScopedDdl:
        schema, name = self._ddl.schema_name, self._ddl.table_name
        before = {i: self._routed(self._before[i]) for i in kept if i in self._before}
        after = {
            i: (
                self._routed(self._with_what_others_need(table))
                if (table := self._after[i])
                else None
            )
            for i in kept
        }
        scoped = ScopedDdl.from_job(
            self._ddl,
            effect=DdlEffect(
                {i: s and self._routed_schema(s) for i, s in self._schemas.items()}, after
            ),
            before=before,
            merged=self._merged[0] if self._merged else "",
            left_out=tuple(sorted(self._left_out)),
            moved_sources=tuple(self._moved_sources),
            renamed_for_source=tuple(self._renamed_for_source),
            shapes=self._shapes,
            only_if_empty=self._kind == Action.DROP_SCHEMA
            and (
                not self._filters.wants_whole_schema(schema) or self._routes.concerns_schema(schema)
            ),
        )
        if not self._routes.rules:
            return scoped
        schema_name, table_name = (
            self._name(schema, name) if name else (self._routes.target_schema(schema), name)
        )
        return replace(
            scoped,
            schema_name=schema_name,
            table_name=table_name,
            query=self._routed_query(),
            needs_schemas=self._new_schemas(after, before),
        )

    def _routed_query(self) -> str:
        schema, query = self._ddl.schema_name, self._ddl.query
        if self._ddl_had_schemas():
            return rename_database(query, self._routes.target_schema(schema))
        return rename_tables(query, schema, self._name)

    def _new_schemas(
        self, after: Mapping[int, Table | None], before: Mapping[int, Table]
    ) -> tuple[str, ...]:
        """Return databases that only routes name, and in which no table of the job has been.

        A table's own database is one, if another route gives that another name.
        """
        routed = {
            table.schema_name
            for i, table in after.items()
            if table
            and (was := self._after[i]) is not None
            and not table.schema_name
            == was.schema_name
            == self._routes.target_schema(was.schema_name)
        }
        return tuple(sorted(routed - {table.schema_name for table in before.values()}))

    def _with_what_others_need(self, table: Table) -> Table:
        """Return the table with columns that other sources of a merged table may still have."""
        old = self._before.get(table.id)
        if not self._merged or old is None:
            return table
        by_source = bool(self._checks.target(table).source_column)
        try:
            union = union_behind(self._ddl, old, table, by_source=by_source)
        except UnionError as error:
            raise self._error(
                f"{table.full_name} is merged with other tables ({self._merged[0]}): {error}",
                f"run it downstream for all of them (`sluice ddl replace {self._ddl.commit_ts}`),"
                " or",
            ) from None
        self._renamed_for_source += union.renamed
        if union.stays:
            self._warnings.append(
                f"{self._ddl.title} drops {', '.join(union.stays)} of {old.full_name}: the columns"
                f" stay, as other tables are merged with it ({self._merged[0]}); once all of them"
                " are without, drop the columns downstream by hand"
            )
        return union.table

    def _routed(self, table: Table) -> Table:
        target = self._checks.target(table)
        return replace(
            self._checks.by_source(table, target),
            schema_name=target.schema, name=target.table, view=self._routed_view(table),
            foreign_keys=tuple(self._routed_key(table, key) for key in table.foreign_keys),
        )  # fmt: skip

    def _routed_view(self, table: Table) -> dict[str, Any] | None:
        if not table.view or not self._routes.rules:
            return table.view
        return {
            **table.view,
            "view_select": rename_in_query(str(table.view["view_select"]), self._name),
        }

    def _routed_key(self, table: Table, key: dict[str, Any]) -> dict[str, Any]:
        if not self._routes.rules:
            return key
        schema, name = self._name(
            plain_name(key.get("ref_schema") or table.schema_name), plain_name(key["ref_table"])
        )
        return {**key, "ref_schema": schema, "ref_table": name}

    def _routed_schema(self, schema: Schema) -> Schema:
        return replace(schema, name=self._routes.target_schema(schema.name))

    def _name(self, schema: str, table: str) -> tuple[str, str]:
        try:
            target = self._routes.target(schema, table)
        except RouteError:
            return schema, table
        return target.schema, target.table

    def _error(self, what: str, way: str) -> ScopeError:
        return self._checks.error(what, way)
