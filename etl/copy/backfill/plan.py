"""Plan a backfill, and find what hinders it. Nothing is written, nothing counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sluice.errors import SluiceError
from sluice.etl.changes.rules import (
    ColumnRuleError,
    Filter,
    RouteError,
    Routes,
    RowRuleError,
    with_source_column,
)
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.copy import CopyError
from sluice.etl.copy.backfill.request import BackfillRequest
from sluice.etl.copy.backfill.table_key import parse_key, range_key
from sluice.etl.copy.backfill.upstream_catalog import TableSize, UpstreamCatalog
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import BackfillError
from sluice.relay.aligned_chunks import COMPARE, MISSING
from sluice.relay.json_codec import JsonDocument
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import fits, full_name, suggestion

MAX_KEYLESS_BYTES = 64 << 20
"""A table without a key is one chunk, for which applying waits: larger ones are refused."""
_ESTIMATED_ROWS_PER_S = 10_000
"""Estimate where no rate is given; docs/reference/performance/jobs.md has measured more."""


@dataclass(frozen=True, slots=True)
class BackfillTablePlan:
    """A table to be copied again to `target` downstream.

    `key`: the columns by which it is cut, () if it goes as one. `rows` and `bytes`: about how many
    the whole table has, 0 if unknown. `low`, `high`: the range that was asked for, as literals.
    `is_created`: it isn't there downstream. `only`: see `BackfillRequest`.
    """

    table_id: int
    name: str
    target: str
    key: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    low: list[str] | None = None
    high: list[str] | None = None
    is_created: bool = False
    only: tuple[str, ...] = ()

    @property
    def extent(self) -> str:
        """Describe in which chunks the table is copied, for people."""
        if not self.key:
            return ", as one chunk"
        limits = [
            f"from {', '.join(self.low)}" if self.low else "",
            f"before {', '.join(self.high)}" if self.high else "",
        ]
        found = ", in ranges of ({}) {}".format(", ".join(self.key), " ".join(filter(None, limits)))
        return found.rstrip()


@dataclass(frozen=True, slots=True)
class BackfillPlan(JsonDocument):
    """A backfill plan; `problems` hinder it; `notes` are for people to know."""

    JSON_COMPLETE: ClassVar = True

    mode: str
    tables: tuple[BackfillTablePlan, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    rows_per_second: int = 0

    @property
    def rows(self) -> int:
        """About how many rows there are to be read."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """About how many bytes there are to be read."""
        return sum(table.bytes for table in self.tables)

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        return self.rows / (self.rows_per_second or _ESTIMATED_ROWS_PER_S)

    def lines(self) -> list[str]:
        """Return the plan for people."""
        tables = "1 table" if len(self.tables) == 1 else f"{len(self.tables)} tables"
        return [
            *(
                f"{self.mode:<8} {table.name}"
                f"{'' if table.target == table.name else f' to {table.target}'}:"
                f" {_size(table.rows, table.bytes)}{table.extent}"
                for table in self.tables
            ),
            f"in all   {tables}, {_size(self.rows, self.bytes)}",
            *([f"takes    about {self.seconds:,.0f} s"] if self.seconds else []),
            "reads    each chunk as of a moment ago: TiDB keeps what it needs anyway, and its GC"
            " isn't held back",
            *(f"note     {note}" for note in self.notes),
            *(f"stops    {problem}" for problem in self.problems),
        ]


def _size(rows: int, size: int) -> str:
    return f"about {rows:,} rows, {size / 1e6:,.1f} MB" if rows else "of unknown size"


def make_backfill_plan(
    request: BackfillRequest,
    definitions: SourceSchema,
    rules: tuple[Filter, Routes],
    upstream: UpstreamCatalog,
    held: Mapping[str, set[str]],
) -> BackfillPlan:
    """Plan a request.

    `definitions`: the upstream's schema now; `held`: the downstream's columns by table. Raises what
    the upstream's clients raise.
    """
    return _BackfillPlanner(request, rules, upstream, held).plan(definitions)


class _BackfillPlanner:
    def __init__(
        self,
        request: BackfillRequest,
        rules: tuple[Filter, Routes],
        upstream: UpstreamCatalog,
        held: Mapping[str, set[str]],
    ) -> None:
        self._request = request
        self._filters, self._routes = rules
        self._upstream = upstream
        self._held = held
        self._problems: list[str] = []
        self._notes: list[str] = []

    def plan(self, definitions: SourceSchema) -> BackfillPlan:
        request = self._request
        chosen = self._chosen(definitions)
        sizes = self._upstream.sizes() if chosen else {}
        tables = [
            self._planned(table, sizes.get(table.full_name, TableSize(0, 0))) for table in chosen
        ]
        if request.where and request.mode != MISSING:
            self._notes.append(
                "with --where only rows that TiDB finds by it are looked at: rows that are"
                " downstream alone stay, and aren't reported"
            )
        return BackfillPlan(
            request.mode,
            tuple(table for table in tables if table is not None),
            tuple(self._problems),
            tuple(self._notes),
            request.rows_per_second,
        )

    def _chosen(self, definitions: SourceSchema) -> list[Table]:
        """Return the tables that the globs name."""
        found: dict[int, Table] = {}
        for glob in self._request.tables:
            matching = [
                t for t in definitions.tables if t.is_base_table and fits(t.full_name, glob)
            ]
            if not matching:
                known = [t.full_name for t in definitions.tables if t.is_base_table]
                self._problems.append(
                    f"--table {glob}: TiDB has no table of such a name now{suggestion(glob, known)}"
                )
            wanted = [t for t in matching if self._filters.wants_table(t.schema_name, t.name)]
            for table in matching:
                if table not in wanted and not any(sign in glob for sign in "*?["):
                    why = self._filters.reason(table.schema_name, table.name)
                    self._problems.append(
                        f"{table.full_name} isn't replicated ({why}): nothing would keep it up to"
                        " date"
                    )
            found |= {table.id: table for table in wanted}
        if len(found) > 1 and (self._request.from_key or self._request.to_key):
            self._problems.append(
                f"--from-key and --to-key are about one table, the globs name {len(found)}"
            )
            return []
        return sorted(found.values(), key=lambda table: table.full_name)

    def _planned(self, table: Table, size: TableSize) -> BackfillTablePlan | None:
        try:
            return self._checked(table, size)
        except (BackfillError, ColumnRuleError, CopyError, RouteError, RowRuleError) as error:
            if isinstance(error, SluiceError) and error.transient:
                raise
            self._problems.append(
                f"{table.full_name}: {error}" if table.full_name not in str(error) else str(error)
            )
            return None

    def _checked(self, table: Table, size: TableSize) -> BackfillTablePlan:
        request = self._request
        target = self._routes.target(table.schema_name, table.name)
        if target.mixes_rows:
            raise BackfillError(
                f"{table.full_name} is merged into {full_name(target.schema, target.table)} with"
                " others: which rows there are its own is unknown, so none can be replaced or"
                " compared. `source-column` of the [[route]] would tell"
            )
        if self._filters.leaves_changes_out(table.schema_name, table.name):
            raise BackfillError(
                f"{table.full_name} is replicated in part, by event filters: downstream it"
                " isn't meant to be what it is upstream"
            )
        narrowed = self._filters.narrowed(table)
        if narrowed is not table:
            rules = self._filters.column_rules(table.schema_name, table.name)
            texts = " and ".join(rule.text for rule in rules)
            self._notes.append(f"{table.full_name}: its columns are copied as {texts} leaves them")
        selection = self._filters.row_selection(table)
        if selection is not None:
            self._upstream.check_readable(table, selection.sql())
            self._notes.append(
                f"{table.full_name}: only the rows that {selection.rules[0].text} selects are"
                " copied"
            )
        self._upstream.check_readable(table, request.where)
        key = range_key(table)
        if not key:
            self._check_keyless(table, size)
        goal = full_name(target.schema, target.table)
        held = self._held.get(folded(goal))
        self._check_columns(with_source_column(narrowed, target), held, goal)
        only = request.only.get(table.full_name, ()) if key else ()
        return BackfillTablePlan(
            table.id,
            table.full_name,
            goal,
            tuple(column.name for column in key),
            0 if only else size.rows,
            0 if only else size.bytes,
            parse_key("--from-key", request.from_key, key),
            parse_key("--to-key", request.to_key, key),
            is_created=held is None,
            only=only,
        )

    def _check_keyless(self, table: Table, size: TableSize) -> None:
        if self._request.from_key or self._request.to_key:
            raise BackfillError(
                "it has no key that ranges can be cut by: a primary key, or a unique key without"
                " NULLs"
            )
        if self._request.where and not lookup_key_columns(table):
            raise BackfillError(
                "it has no key by which rows of a condition could be found downstream"
            )
        if size.bytes > MAX_KEYLESS_BYTES:
            raise BackfillError(
                f"it has no key that ranges can be cut by, and about {size.bytes / 1e6:,.0f} MB:"
                " applying would stand still while all of it is copied. Up to"
                f" {MAX_KEYLESS_BYTES / 1e6:,.0f} MB are; give it a primary key"
            )
        self._notes.append(
            f"{table.full_name} has no key that ranges can be cut by, and is copied as one chunk"
        )

    def _check_columns(self, table: Table, held: set[str] | None, target: str) -> None:
        if held is None:
            if self._request.mode == COMPARE:
                raise BackfillError(f"{target} isn't there downstream: there is nothing to compare")
            self._notes.append(f"{target} isn't there downstream, and is created")
            return
        wanted = [*(column.name for column in table.stored_columns), *table.history]
        if lacking := [name for name in wanted if folded(name) not in held]:
            raise BackfillError(
                f"{target} downstream lacks the columns {', '.join(lacking)}: if a DDL adds them"
                " that isn't applied yet, wait for it; else add them there"
            )
