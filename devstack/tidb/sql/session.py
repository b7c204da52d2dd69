"""A session: its variables, its transaction, and what each statement does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sluice.devstack.tidb.sql import system_tables, values
from sluice.devstack.tidb.sql.errors import SQLError, syntax_error
from sluice.devstack.tidb.sql.evaluate import Scope, compile_expression
from sluice.devstack.tidb.sql.key_limits import key_limits, key_order
from sluice.devstack.tidb.sql.parse import Node, Parser
from sluice.devstack.tidb.sql.results import Result, texts
from sluice.devstack.tidb.sql.select import Executor, Input, Select, read_select
from sluice.devstack.tidb.sql.show_create import show_create_database, show_create_table
from sluice.devstack.tidb.sql.system_tables import ClusterState
from sluice.devstack.tidb.sql.variables import VERSION, Variables
from sluice.devstack.tidb.sql.versioned_rows import Catalog
from sluice.devstack.tidb.sql.write_statements import WRITES, RowWriter
from sluice.devstack.tidb.sql.writes import WriteTransaction
from sluice.etl.changes import server_errors
from sluice.tidb.codec.row import HANDLE_ID, ROWID_NAME
from sluice.tidb.column_types import BIGINT
from sluice.tidb.schema import Column, Table
from sluice.tidb.tso import compose, physical_ms

_ROWID = Column(HANDLE_ID, ROWID_NAME, HANDLE_ID, BIGINT, flen=20)
_REFUSED = ("REPLACE", "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME")
_SYSTEM_SCHEMAS = {"information_schema", "mysql"}


class Session:
    """Execute statements. Every method raises SQLError."""

    def __init__(self, state: ClusterState, number: int) -> None:
        self.variables = Variables()
        self._state = state
        self._schema: str | None = None
        self._transaction_ts = 0
        self._snapshot_ts = 0
        self._writes: WriteTransaction | None = None
        self._row_count = 0
        self._functions: dict[str, Callable[..., Any]] = {
            "VERSION": lambda: VERSION,
            "DATABASE": lambda: self._schema,
            "CONNECTION_ID": lambda: number,
            "ROW_COUNT": lambda: self._row_count,
            "NOW": self._now,
            "TIDB_PARSE_TSO": self._parse_tso,
        }

    def use(self, schema: str) -> None:
        """Set the current database. Raises SQLError UNKNOWN_DATABASE."""
        known = {
            s.name.lower() for s in self._catalog(self._read_ts()).schemas.values()
        } | _SYSTEM_SCHEMAS
        if schema.lower() not in known:
            raise SQLError(server_errors.UNKNOWN_DATABASE, f"Unknown database '{schema}'")
        self._schema = schema

    def execute(self, text: str) -> Result:
        """Execute one statement."""
        parser = Parser(text)
        word = str(parser.take().value).upper()
        match word:
            case "SELECT":
                return self._select(read_select(parser))
            case "SET":
                return self._set(parser)
            case "SHOW":
                return self._show(parser)
            case "USE":
                self.use(parser.name())
                return Result()
            case "BEGIN" | "START":
                return self._begin(parser)
            case "COMMIT" | "ROLLBACK":
                self._end_transaction(commits=word == "COMMIT")
                return Result()
        if word in (*WRITES, *_REFUSED):
            return self._write(word, parser)
        raise syntax_error(text)

    # ---- writes --------------------------------------------------------------------------------

    def _write(self, word: str, parser: Parser) -> Result:
        if self._snapshot_ts:
            raise SQLError(
                server_errors.UNKNOWN_ERROR,
                "can not execute write statement when 'tidb_snapshot' is set",
            )
        if word not in WRITES or self._state.commit is None:
            raise SQLError(
                server_errors.UNKNOWN_ERROR,
                f"the stand-in takes no {word}; it takes SELECT, and where its recording was played"
                f" {', '.join(WRITES)}",
            )
        if self.variables.zone_minutes:
            raise SQLError(
                server_errors.UNKNOWN_ERROR,
                "the stand-in writes in UTC only: SET time_zone = '+00:00'",
            )
        ts = self._transaction_ts or self._state.take_ts()
        if self._writes is None:
            self._writes = WriteTransaction(self._state.versions, ts)
        catalog = self._catalog(ts)
        writer = RowWriter(
            self._writes, lambda names: self._table(catalog, *self._named(names)), self._scope,
            self._now,
        )  # fmt: skip
        stays_open = bool(self._transaction_ts) or not self.variables.get("@@autocommit")
        try:
            self._row_count = writer.execute(word, parser)
        finally:
            if stays_open:
                self._transaction_ts = ts
        if not stays_open:
            self._end_transaction(commits=True)
        return Result(affected=self._row_count)

    def _end_transaction(self, *, commits: bool) -> None:
        """End the transaction; without writes there is nothing to commit."""
        writes, self._writes, self._transaction_ts = self._writes, None, 0
        if commits and writes is not None and writes.tables():
            assert self._state.commit is not None
            self._state.commit(writes)

    # ---- time ----------------------------------------------------------------------------------

    def _read_ts(self) -> int:
        ts = self._snapshot_ts or self._transaction_ts or self._state.take_ts()
        safe_point = self._state.gc_safe_point()
        if ts < safe_point:
            raise SQLError(
                server_errors.GC_TOO_EARLY,
                "GC life time is shorter than transaction duration, transaction starts at"
                f" {_shown_time(ts)}, GC safe point is {_shown_time(safe_point)}",
            )
        return ts

    def _past(self, value: Any) -> int:
        """Return a TSO, or a time in the session's zone, as a TSO that may be read."""
        text = str(value).strip()
        ts = int(text) if text.isdigit() else self._tso_of(text)
        if ts > self._state.take_ts():
            raise SQLError(
                server_errors.UNKNOWN_ERROR, "cannot set read timestamp to a future time"
            )
        safe_point = self._state.gc_safe_point()
        if ts < safe_point:
            raise SQLError(
                server_errors.SNAPSHOT_TOO_OLD,
                f"snapshot is older than GC safe point {_shown_time(safe_point)}",
            )
        return ts

    def _tso_of(self, text: str) -> int:
        try:
            moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            raise SQLError(
                server_errors.INCORRECT_TIME, f"Incorrect datetime value: '{text}'"
            ) from None
        return compose(round(moment.timestamp() * 1000) - self.variables.zone_minutes * 60_000)

    def _now(self, digits: Any = 0) -> str:
        moment = datetime.fromtimestamp(physical_ms(self._state.take_ts()) / 1000, UTC)
        second = values.shifted(moment.strftime("%Y-%m-%d %H:%M:%S"), self.variables.zone_minutes)
        fraction = f"{moment.microsecond:06d}"[: int(values.as_number(digits))]
        return f"{second}.{fraction}" if fraction else second

    def _parse_tso(self, tso: Any) -> str | None:
        if tso is None or not int(values.as_number(tso)):
            return None
        moment = datetime.fromtimestamp(physical_ms(int(values.as_number(tso))) / 1000, UTC)
        return values.shifted(moment.strftime("%Y-%m-%d %H:%M:%S.%f"), self.variables.zone_minutes)

    def _begin(self, parser: Parser) -> Result:
        self._end_transaction(commits=True)
        parser.accept("TRANSACTION")
        parser.accept("READ", "ONLY")
        parser.accept("WITH", "CONSISTENT", "SNAPSHOT")
        if parser.accept("AS", "OF", "TIMESTAMP"):
            self._transaction_ts = self._past(self._value(parser.expression()))
        else:
            self._transaction_ts = self._state.take_ts()
        parser.end()
        return Result()

    # ---- SET -----------------------------------------------------------------------------------

    def _set(self, parser: Parser) -> Result:
        if parser.accept("NAMES"):
            charset = parser.take().value
            for name in (
                "character_set_client",
                "character_set_connection",
                "character_set_results",
            ):
                self.variables.set(f"@@{name}", charset)
            return Result()
        while True:
            if parser.accept("SESSION") and parser.accept("TRANSACTION"):
                return Result()  # an isolation level
            parser.accept("GLOBAL")
            token = parser.take()
            name = str(token.value) if token.kind == "variable" else f"@@{token.value}"
            parser.expect("=")
            self._assign(name, parser)
            if not parser.accept(","):
                parser.end()
                return Result()

    def _assign(self, name: str, parser: Parser) -> None:
        node = parser.expression()
        value = node[1] if node[0] == "column" else self._value(node)
        if name.startswith("@@") and self.variables.known(name) == "tidb_snapshot":
            self._snapshot_ts = self._past(value) if value else 0
        self.variables.set(name, value)

    def _value(self, node: Node) -> Any:
        return compile_expression(node, self._scope([]))([])

    def _variable(self, name: str) -> Any:
        if (
            name.startswith("@@")
            and re.sub(r"^@@(session\.)?", "", name).lower() == "tidb_current_ts"
        ):
            return str(self._transaction_ts)
        return self.variables.get(name)

    def _scope(self, columns: Sequence[Column]) -> Scope:
        return Scope(
            {c.name.lower(): (n, c) for n, c in enumerate(columns)}, self._variable, self._functions
        )

    # ---- SELECT --------------------------------------------------------------------------------

    def _select(self, select: Select) -> Result:
        given = self._input(select)
        charset = str(self.variables.get("@@character_set_results"))
        return Executor(select, given, self._scope(given.columns), charset).run()

    def _input(self, select: Select) -> Input:
        if not select.source:
            return Input(None, [], [], [[]])
        ts = self._read_ts() if select.as_of is None else self._past(self._value(select.as_of))
        catalog = self._catalog(ts)
        schema, name = self._named(select.source)
        system = system_tables.find(schema, name)
        if system is not None:
            table, rows = system
            return Input(
                table, list(table.columns), list(table.columns), rows(catalog, self._state)
            )
        table = self._table(catalog, schema, name)
        columns = list(table.stored_columns)
        if table.handle_kind == "heap":
            columns.append(_ROWID)
        virtual = [c for c in table.columns if c.public and c.virtual and not c.hidden]
        self._state.settle(ts)
        ordered_by = key_order(table)
        # Without new collations rows are kept in another order than their columns say.
        cut = ordered_by[:1] if self._state.versions.new_collations() else ()
        limits = key_limits(select.where, self._scope(columns), cut)
        rows_ = self._rows(table, columns, virtual, (ts, *limits))
        shown = [c for c in table.columns if c.public and not c.hidden]
        return Input(table, [*columns, *virtual], shown, rows_, self._state.region_rows, ordered_by)

    def _rows(
        self, table: Table, columns: list[Column], virtual: list[Column], read: tuple[int, Any, Any]
    ) -> Iterator[list[Any]]:
        ts, low, high = read
        minutes = self.variables.zone_minutes
        times = [n for n, c in enumerate(columns) if c.kind == "timestamp"] if minutes else []
        formulas = []
        for number, column in enumerate(virtual):
            scope = self._scope([*columns, *virtual[:number]])
            formulas.append(compile_expression(Parser(column.generated).expression(), scope))
        own = self._writes is not None and self._writes.changes(table) and not self._snapshot_ts
        for row in (
            self._own_rows(table)
            if own
            else self._state.versions.rows(table, self._state.visible(ts), low, high)
        ):
            for n in times:
                row[n] = row[n] and values.shifted(row[n], minutes)
            for formula in formulas:
                row.append(formula(row))
            yield row

    def _own_rows(self, table: Table) -> list[list[Any]]:
        """Return the rows with the transaction's own changes, in the order of their keys."""
        assert self._writes is not None
        return [row for _, row in sorted(self._writes.rows(table), key=lambda found: found[0][1:])]

    def _catalog(self, ts: int) -> Catalog:
        return self._state.versions.catalog(self._state.visible(ts))

    def _named(self, names: tuple[str, ...]) -> tuple[str, str]:
        if len(names) == 2:
            return names[0], names[1]
        if self._schema is None:
            raise SQLError(server_errors.NO_DATABASE, "No database selected")
        return self._schema, names[0]

    def _table(self, catalog: Catalog, schema: str, name: str) -> Table:
        table = catalog.find(schema, name)
        if table is None:
            raise SQLError(server_errors.NO_SUCH_TABLE, f"Table '{schema}.{name}' doesn't exist")
        return table

    # ---- SHOW ----------------------------------------------------------------------------------

    def _show(self, parser: Parser) -> Result:
        if parser.accept("MASTER", "STATUS"):
            columns = ["File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB", "Executed_Gtid_Set"]
            return texts(columns, [["tidb-binlog", self._state.take_ts(), "", "", ""]])
        catalog = self._catalog(self._read_ts())
        if parser.accept("CREATE", "TABLE"):
            table = self._table(catalog, *self._named(tuple(parser.names())))
            text = show_create_table(
                table, catalog.infos[table.id], self._state.versions.next_id(table)
            )
            return texts(["Table", "Create Table"], [[table.name, text]])
        if parser.accept("CREATE", "DATABASE"):
            name = parser.name()
            schema = next(
                (s for s in catalog.schemas.values() if s.name.lower() == name.lower()), None
            )
            if schema is None:
                raise SQLError(server_errors.UNKNOWN_DATABASE, f"Unknown database '{name}'")
            return texts(
                ["Database", "Create Database"], [[schema.name, show_create_database(schema)]]
            )
        if parser.accept("DATABASES"):
            names = sorted({s.name for s in catalog.schemas.values()} | {"INFORMATION_SCHEMA"})
            return texts(["Database"], [[name] for name in names])
        if parser.accept("TABLES"):
            return self._show_tables(parser, catalog)
        if parser.accept("CONFIG"):
            return _config()
        if (
            parser.accept("VARIABLES")
            or parser.accept("GLOBAL", "VARIABLES")
            or parser.accept("SESSION", "VARIABLES")
        ):
            pattern = str(parser.take().value) if parser.accept("LIKE") else "%"
            return texts(
                ["Variable_name", "Value"], [[n, str(v)] for n, v in self.variables.like(pattern)]
            )
        if parser.accept("WARNINGS"):
            return texts(["Level", "Code", "Message"], [])
        raise syntax_error(f"SHOW {parser.here.value}")

    def _show_tables(self, parser: Parser, catalog: Catalog) -> Result:
        schema = parser.name() if parser.accept("FROM") or parser.accept("IN") else self._schema
        if schema is None:
            raise SQLError(server_errors.NO_DATABASE, "No database selected")
        names = sorted(
            t.name for t in catalog.tables.values() if t.schema_name.lower() == schema.lower()
        )
        return texts([f"Tables_in_{schema}"], [[name] for name in names])


def _config() -> Result:
    """Answer SHOW CONFIG with what concerns binlogs, whatever is asked."""
    settings = {
        "enable": "true",
        "ignore-error": "false",
        "strategy": "range",
        "write-timeout": "15s",
    }
    rows = [
        ["tidb", "127.0.0.1:4000", f"binlog.{name}", value]
        for name, value in sorted(settings.items())
    ]
    return texts(["Type", "Instance", "Name", "Value"], rows)


def _shown_time(ts: int) -> str:
    """Return a time as Go prints it in error texts."""
    moment = datetime.fromtimestamp(physical_ms(ts) / 1000, UTC)
    return (
        f"{moment.strftime('%Y-%m-%d %H:%M:%S')}.{moment.microsecond // 1000:03} +0000 UTC".replace(
            ".000 ", " "
        )
    )
