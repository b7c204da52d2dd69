"""Tables about the cluster: parts of `information_schema`, and `mysql.tidb`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sluice.devstack.tidb.sql.show_create import column_type
from sluice.devstack.tidb.sql.variables import VERSION
from sluice.devstack.tidb.sql.versioned_rows import Catalog
from sluice.devstack.tidb.sql.versions import Versions
from sluice.devstack.tidb.sql.writes import WriteTransaction
from sluice.tidb.column_types import BIGINT, FLAG_AUTO_INCREMENT, VARCHAR
from sluice.tidb.schema import STATE_PUBLIC, Column, Table
from sluice.tidb.tso import physical_ms


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster state; `take_ts`: a fresh TSO of PD.

    `limit`: nothing that committed later ever happened, None without a limit. `gc_safe_point`: a
    TSO. `users`: passwords by name. `region_rows`: how many rows of a table make a region.
    """

    versions: Versions
    take_ts: Callable[[], int]
    limit: Callable[[], int | None] = lambda: None
    gc_safe_point: Callable[[], int] = lambda: 0
    users: Mapping[str, str] = field(default_factory=lambda: {"root": ""})
    region_rows: int = 1000
    settle: Callable[[int], None] = lambda ts: None
    """Returns once every transaction that may yet commit at or below a TSO has."""
    commit: Callable[[WriteTransaction], int] | None = None
    """Commits what a session wrote, and returns the commit_ts; None: the port only reads. Raises
    SQLError.
    """

    def visible(self, ts: int) -> int:
        """Return the TSO up to which a reader at `ts` sees the recording."""
        limit = self.limit()
        return ts if limit is None else min(ts, limit)


Rows = Callable[[Catalog, ClusterState], Iterator[list[Any]]]


def find(schema: str, name: str) -> tuple[Table, Rows] | None:
    """Return the system table of that name, None if the stand-in has none."""
    found = _TABLES.get((schema.lower(), name.lower()))
    if found is None:
        return None
    columns, rows = found
    described = tuple(
        Column(n, column, n, BIGINT) if column in _NUMBERS else _text_column(n, column)
        for n, column in enumerate(columns, 1)
    )
    return Table(0, 0, schema, name, described), rows


def sharding_info(table: Table, info: Any) -> str | None:
    """Return the table's TIDB_ROW_ID_SHARDING_INFO."""
    if table.is_view:
        return None
    if table.auto_random_bits:
        return f"PK_AUTO_RANDOM_BITS={table.auto_random_bits}"
    if table.pk_is_handle:
        return "NOT_SHARDED(PK_IS_HANDLE)"
    bits = (info or {}).get("ShardRowIDBits")
    return f"SHARD_BITS={bits}" if bits else "NOT_SHARDED"


def _text_column(number: int, name: str) -> Column:
    return Column(number, name, number, VARCHAR, flen=512, charset="utf8mb4", collate="utf8mb4_bin")


def _tables(catalog: Catalog, state: ClusterState) -> Iterator[list[Any]]:
    for table in sorted(catalog.tables.values(), key=lambda t: (t.schema_name, t.name)):
        kind = "VIEW" if table.is_view else "SEQUENCE" if table.is_sequence else "BASE TABLE"
        clustered = "NONCLUSTERED" if table.handle_kind == "heap" else "CLUSTERED"
        info = catalog.infos.get(table.id)
        yield [
            "def",
            table.schema_name,
            table.name,
            kind,
            None if table.is_view else "InnoDB",
            0,
            0,
            0,
            table.collate or "utf8mb4_bin",
            table.comment,
            table.id,
            sharding_info(table, info),
            None if table.is_view else clustered,
        ]


def _columns(catalog: Catalog, state: ClusterState) -> Iterator[list[Any]]:
    for table in sorted(catalog.tables.values(), key=lambda t: (t.schema_name, t.name)):
        shown = [c for c in table.columns if c.public and not c.hidden]
        for number, column in enumerate(shown, 1):
            text = (
                column.charset
                if column.kind in ("text", "enum", "set") and column.charset != "binary"
                else None
            )
            full = column_type(column)
            default = (
                column.default.decode() if isinstance(column.default, bytes) else column.default
            )
            yield [
                "def",
                table.schema_name,
                table.name,
                column.name,
                number,
                default,
                "NO" if column.not_null else "YES",
                full.split("(")[0].split(" ")[0],
                text,
                column.collate if text else None,
                full,
                _key(table, column),
                _extra(column),
                column.generated,
            ]


def _key(table: Table, column: Column) -> str:
    if column.name in table.primary_key:
        return "PRI"
    for index in table.indexes:
        if index.state == STATE_PUBLIC and index.columns and index.columns[0][0] == column.name:
            return "UNI" if index.unique and len(index.columns) == 1 else "MUL"
    return ""


def _extra(column: Column) -> str:
    if column.generated:
        return "STORED GENERATED" if column.generated_stored else "VIRTUAL GENERATED"
    return "auto_increment" if column.flag & FLAG_AUTO_INCREMENT else ""


def _schemata(catalog: Catalog, state: ClusterState) -> Iterator[list[Any]]:
    for schema in sorted(catalog.schemas.values(), key=lambda s: s.name):
        yield ["def", schema.name, schema.charset or "utf8mb4", schema.collate or "utf8mb4_bin"]


def _servers(catalog: Catalog, state: ClusterState) -> Iterator[list[Any]]:
    yield ["stand-in", "127.0.0.1", 4000, 10080, "45s", VERSION, "None", "On"]


def _variables(catalog: Catalog, state: ClusterState) -> Iterator[list[Any]]:
    safe_point = datetime.fromtimestamp(physical_ms(state.gc_safe_point()) / 1000, UTC).strftime(
        "%Y%m%d-%H:%M:%S."
    )
    milliseconds = physical_ms(state.gc_safe_point()) % 1000
    shown = f"{safe_point}{milliseconds:03} +0000"
    yield ["bootstrapped", "True", "Bootstrap flag. Do not delete."]
    yield [
        "new_collation_enabled",
        str(state.versions.new_collations()),
        "If the new collations are enabled. Do not edit it.",
    ]
    yield [
        "tikv_gc_life_time",
        "10m0s",
        "All versions within life time will not be collected by GC, at least 10m.",
    ]
    yield ["tikv_gc_last_run_time", shown, "The time when last GC starts. (DO NOT EDIT)"]
    yield [
        "tikv_gc_safe_point",
        shown,
        "All versions after safe point can be accessed. (DO NOT EDIT)",
    ]


_NUMBERS = {
    "TABLE_ROWS",
    "AVG_ROW_LENGTH",
    "DATA_LENGTH",
    "TIDB_TABLE_ID",
    "ORDINAL_POSITION",
    "PORT",
    "STATUS_PORT",
}
_TABLES: dict[tuple[str, str], tuple[list[str], Rows]] = {
    ("information_schema", "tables"): (
        [
            "TABLE_CATALOG",
            "TABLE_SCHEMA",
            "TABLE_NAME",
            "TABLE_TYPE",
            "ENGINE",
            "TABLE_ROWS",
            "AVG_ROW_LENGTH",
            "DATA_LENGTH",
            "TABLE_COLLATION",
            "TABLE_COMMENT",
            "TIDB_TABLE_ID",
            "TIDB_ROW_ID_SHARDING_INFO",
            "TIDB_PK_TYPE",
        ],
        _tables,
    ),
    ("information_schema", "columns"): (
        [
            "TABLE_CATALOG",
            "TABLE_SCHEMA",
            "TABLE_NAME",
            "COLUMN_NAME",
            "ORDINAL_POSITION",
            "COLUMN_DEFAULT",
            "IS_NULLABLE",
            "DATA_TYPE",
            "CHARACTER_SET_NAME",
            "COLLATION_NAME",
            "COLUMN_TYPE",
            "COLUMN_KEY",
            "EXTRA",
            "GENERATION_EXPRESSION",
        ],
        _columns,
    ),
    ("information_schema", "schemata"): (
        ["CATALOG_NAME", "SCHEMA_NAME", "DEFAULT_CHARACTER_SET_NAME", "DEFAULT_COLLATION_NAME"],
        _schemata,
    ),
    ("information_schema", "tidb_servers_info"): (
        ["DDL_ID", "IP", "PORT", "STATUS_PORT", "LEASE", "VERSION", "GIT_HASH", "BINLOG_STATUS"],
        _servers,
    ),
    ("mysql", "tidb"): (["VARIABLE_NAME", "VARIABLE_VALUE", "COMMENT"], _variables),
}
