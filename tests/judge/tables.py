"""Tables of the model: columns, indexes, partitions and rows in plain Python, and the TableInfo
that TiDB would keep of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.judge import wire
from tests.judge.kinds import NOT_NULL, PRIMARY, Kind

ROWID = -1
"""The column id of the hidden row id."""


SYSTEM_SCHEMAS = (
    "'mysql','information_schema','performance_schema','sys','tidb_binlog','sluice_recycle'"
)
"""Those downstream that aren't the upstream's, for SQL's IN."""


def quoted(name: str) -> str:
    """An identifier in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def named(name: str) -> dict[str, str]:
    """TiDB's case-insensitive name."""
    return {"O": name, "L": name.lower()}


@dataclass(frozen=True)
class Generated:
    """A generated column: its expression, and the value from the row (by column name)."""

    expression: str
    stored: bool
    value: Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Column:
    """A column.

    `default` and `origin` are values; `spelled` is how the origin default stands in TiDB's
    documents, if not plainly.
    """

    id: int
    name: str
    kind: Kind
    nullable: bool = True
    default: Any = None
    origin: Any = None
    spelled: str | None = None
    generated: Generated | None = None
    on_update: bool = False
    made_from: int = 0
    """The id of the column that a change of the type made this one from."""

    def sql(self) -> str:
        """The definition in TiDB's normal form."""
        text = f"{quoted(self.name)} {self.kind.sql}"
        if self.generated:
            text += (
                f" GENERATED ALWAYS AS({self.generated.expression})"
                f" {'STORED' if self.generated.stored else 'VIRTUAL'}"
            )
        if not self.nullable:
            text += " NOT NULL"
        elif self.kind.family == "timestamp":
            text += " NULL"
        if self.on_update:
            text += " DEFAULT CURRENT_TIMESTAMP() ON UPDATE CURRENT_TIMESTAMP()"
        elif self.default is not None:
            text += f" DEFAULT {self.kind.literal(self.default)}"
        return text

    def info(self, offset: int, primary: bool) -> dict[str, Any]:
        """ColumnInfo as JSON."""
        default, default_bit = self.kind.default(self.default)
        origin, origin_bit = self.kind.default(self.origin)
        flags = (
            (0 if self.nullable else NOT_NULL)
            | (PRIMARY if primary else 0)
            | (8192 if self.on_update else 0)
        )
        return {
            "id": self.id,
            "name": named(self.name),
            "offset": offset,
            "origin_default": self.spelled or origin,
            "origin_default_bit": origin_bit,
            "default": "CURRENT_TIMESTAMP" if self.on_update else default,
            "default_bit": default_bit,
            "default_is_expr": False,
            "generated_expr_string": self.generated.expression if self.generated else "",
            "generated_stored": bool(self.generated and self.generated.stored),
            "dependences": None,
            "type": self.kind.type_info(flags),
            "state": 5,
            "comment": "",
            "hidden": False,
            "change_state_info": None,
            "version": 2,
        }


@dataclass(frozen=True)
class Index:
    """An index over whole columns, or over the first characters, or bytes, of each: as many as
    `prefix`.
    """

    id: int
    name: str
    columns: tuple[str, ...]
    unique: bool = False
    primary: bool = False
    prefix: int = -1

    def sql(self, clustered: bool = False) -> str:
        """The definition in TiDB's normal form."""
        length = f"({self.prefix})" if self.prefix > 0 else ""
        columns = ", ".join(quoted(c) + length for c in self.columns)
        if self.primary:
            return (
                f"PRIMARY KEY({columns}) /*T![clustered_index]"
                f" {'' if clustered else 'NON'}CLUSTERED */"
            )
        return f"{'UNIQUE' if self.unique else 'INDEX'} {quoted(self.name)}({columns})"


@dataclass(frozen=True)
class Partition:
    """RANGE: rows whose partition column is below `below`, and in no partition before it.

    LIST (`values`): rows that have one of these there.
    """

    id: int
    name: str
    below: int
    values: tuple[int, ...] = ()

    def holds(self, value: int | None) -> bool:
        """Whether it takes a row with this value, if none before it does."""
        return value in self.values if self.values else value is None or value < self.below


@dataclass
class Row:
    """A row: values by column id, the hidden row id, and the partition it physically lies in."""

    values: dict[int, Any]
    handle: int
    partition: int = 0


@dataclass
class Table:
    """A table and its rows. `by`: the column of the RANGE partitions."""

    id: int
    schema_id: int
    name: str
    columns: list[Column]
    indexes: list[Index] = field(default_factory=list)
    clustered: bool = True
    partitions: list[Partition] = field(default_factory=list)
    by: str = ""
    rows: list[Row] = field(default_factory=list)
    next_rowid: int = 1
    max_column: int = 0
    max_index: int = 0
    second: list[Partition] = field(default_factory=list)
    """While the table is reorganized: the partitions into which rows are written a second time."""
    twice: set[int] = field(default_factory=set)
    """The ids of the partitions of which they are the new, or the old, ones."""
    unenforced: set[str] = field(default_factory=set)
    """Names of unique indexes that are being dropped: not looked at any more."""
    together: list[Table] = field(default_factory=list, repr=False)
    """The tables that are one downstream with this one, itself among them."""

    def __post_init__(self) -> None:
        self.max_column = max([self.max_column, *(c.id for c in self.columns)])
        self.max_index = max([self.max_index, *(i.id for i in self.indexes)])

    def column(self, name: str) -> Column:
        """The column of that name."""
        return next(c for c in self.columns if c.name == name)

    @property
    def primary(self) -> Index | None:
        return next((i for i in self.indexes if i.primary), None)

    @property
    def handle_kind(self) -> str:
        """``int``, ``common`` or ``heap``."""
        primary = self.primary
        if primary is None or not self.clustered:
            return "heap"
        return (
            "int"
            if len(primary.columns) == 1 and self.column(primary.columns[0]).kind.family == "int"
            else "common"
        )

    @property
    def stored(self) -> list[Column]:
        """The columns that rows carry."""
        return [c for c in self.columns if c.generated is None or c.generated.stored]

    def named_values(self, row: Row) -> dict[str, Any]:
        """The row by column name."""
        return {c.name: row.values[c.id] for c in self.columns}

    def with_generated(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values by column name, the generated ones computed."""
        return values | {c.name: c.generated.value(values) for c in self.columns if c.generated}

    def place(self, values: dict[str, Any]) -> int | None:
        """The id of the partition of such a row, 0 without partitions, None if there is none."""
        if not self.partitions:
            return 0
        value = values[self.by]
        return next((p.id for p in self.partitions if p.holds(value)), None)

    def second_place(self, row: Row, values: dict[str, Any]) -> int:
        """The id of the partition into which such a row is written a second time, 0 without one."""
        if row.partition not in self.twice:
            return 0
        return next(p.id for p in self.second if p.holds(values[self.by]))

    def fits(self, values: dict[str, Any], new_collation: bool, own: Row | None = None) -> bool:
        """Whether no other row holds the row's unique values."""
        return all(
            not self._taken(index, values, new_collation, own)
            for index in self.indexes
            if index.unique and index.name not in self.unenforced
        )

    def _taken(
        self, index: Index, values: dict[str, Any], new_collation: bool, own: Row | None
    ) -> bool:
        kinds = [self.column(name).kind for name in index.columns]
        mine = [
            kind.key(values[name], new_collation, index.prefix)
            for kind, name in zip(kinds, index.columns)
        ]
        if any(values[name] is None for name in index.columns):
            return False
        ids = [self.column(name).id for name in index.columns]
        return any(
            row is not own
            and [
                kind.key(row.values[i], new_collation, index.prefix) for kind, i in zip(kinds, ids)
            ]
            == mine
            for table in self.together or (self,)
            for row in table.rows
        )

    def has_twins(self, index: Index, new_collation: bool) -> bool:
        """Whether a unique index can't be made for rows that are equal there."""
        return any(
            self._taken(index, self.named_values(row), new_collation, row) for row in self.rows
        )

    def inserted(self, row: Row, new_collation: bool) -> bytes:
        """The row as in `inserted_rows`."""
        out, in_handle = b"", set()
        primary = self.primary
        match self.handle_kind:
            case "int":
                assert primary
                key = self.column(primary.columns[0])
                value = row.values[key.id]
                out = wire.integer(value - (1 << 64) if value >= 1 << 63 else value)
                in_handle.add(key.id)
            case "common":
                assert primary
                for column in map(self.column, primary.columns):
                    out += column.kind.handle(row.values[column.id], new_collation)
                    if not column.kind.restored(new_collation):
                        in_handle.add(column.id)
            case _:
                out = wire.integer(row.handle)
        left_out = {
            c.id
            for c in self.stored
            if row.values[c.id] is None
            and c.default is None
            and c.origin is None
            and not c.on_update
        }
        return out + (
            self._pairs(row, [c for c in self.stored if c.id not in in_handle | left_out])
            or wire.NIL
        )

    def key(self, row: Row, new_collation: bool) -> bytes:
        """Under which key TiKV has the row in its partition."""
        primary = self.primary
        if self.handle_kind == "heap" or primary is None:
            handle = wire.ordered(row.handle)
        elif self.handle_kind == "int":
            handle = wire.ordered(row.values[self.column(primary.columns[0]).id])
        else:
            columns = map(self.column, primary.columns)
            handle = b"".join(
                wire.in_key(c.kind.handle(row.values[c.id], new_collation)) for c in columns
            )
        return b"t" + wire.ordered(row.partition) + b"_r" + handle

    def image(self, row: Row) -> bytes:
        """The row as in `deleted_rows` and in each half of `updated_rows`."""
        return self._pairs(row, self.stored) + (
            wire.integer(ROWID) + wire.integer(row.handle) if self.handle_kind == "heap" else b""
        )

    @staticmethod
    def _pairs(row: Row, columns: list[Column]) -> bytes:
        return b"".join(wire.integer(c.id) + c.kind.datum(row.values[c.id]) for c in columns)

    def sql(self) -> str:
        """What is between the name and the end of CREATE TABLE."""
        parts = [c.sql() for c in self.columns] + [i.sql(self.clustered) for i in self.indexes]
        text = f"({','.join(parts)})"
        if self.partitions:
            kind = "LIST" if self.in_lists else "RANGE"
            pieces = ",".join(
                f"PARTITION {quoted(p.name)} VALUES"
                + (
                    f" IN ({','.join(map(str, p.values))})"
                    if p.values
                    else f" LESS THAN ({p.below})"
                )
                for p in self.partitions
            )
            text += f" PARTITION BY {kind} ({quoted(self.by)}) ({pieces})"
        return text

    @property
    def in_lists(self) -> bool:
        """Whether its partitions are LIST's."""
        return any(p.values for p in self.partitions)

    def info(self) -> dict[str, Any]:
        """TableInfo as JSON."""
        offsets = {c.name: n for n, c in enumerate(self.columns)}
        handle, primary = self.handle_kind, self.primary
        keys = set(primary.columns) if primary else set()
        indexes = [
            {
                "id": i.id,
                "idx_name": named(i.name),
                "tbl_name": named(""),
                "state": 5,
                "backfill_state": 0,
                "comment": "",
                "index_type": 1,
                "is_unique": i.unique,
                "is_primary": i.primary,
                "is_invisible": False,
                "is_global": False,
                "mv_index": False,
                "idx_cols": [
                    {"name": named(c), "offset": offsets[c], "length": i.prefix} for c in i.columns
                ],
            }
            for i in self.indexes
            if not (i.primary and handle == "int")
        ]
        return {
            "id": self.id,
            "name": named(self.name),
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "cols": [c.info(n, c.name in keys) for n, c in enumerate(self.columns)],
            "index_info": indexes or None,
            "constraint_info": None,
            "fk_info": None,
            "state": 5,
            "pk_is_handle": handle == "int",
            "is_common_handle": handle == "common",
            "common_handle_version": int(handle == "common"),
            "comment": "",
            "auto_inc_id": 0,
            "auto_id_cache": 0,
            "auto_rand_id": 0,
            "max_col_id": self.max_column,
            "max_idx_id": self.max_index,
            "max_fk_id": 0,
            "max_cst_id": 0,
            "update_timestamp": 1,
            "ShardRowIDBits": 0,
            "max_shard_row_id_bits": 0,
            "auto_random_bits": 0,
            "auto_random_range_bits": 0,
            "pre_split_regions": 0,
            "partition": self._partition_info(),
            "compression": "",
            "view": None,
            "sequence": None,
            "Lock": None,
            "version": 5,
            "tiflash_replica": None,
            "is_columnar": False,
            "temp_table_type": 0,
            "cache_table_status": 0,
            "policy_ref_info": None,
            "stats_options": None,
            "exchange_partition_info": None,
            "ttl_info": None,
        }

    def _partition_info(self) -> dict[str, Any] | None:
        if not self.partitions:
            return None
        definitions = [
            {
                "id": p.id,
                "name": named(p.name),
                "less_than": None if p.values else [str(p.below)],
                "in_values": [[str(value)] for value in p.values] or None,
                "policy_ref_info": None,
            }
            for p in self.partitions
        ]
        return {
            "type": 3 if self.in_lists else 1,
            "expr": quoted(self.by),
            "columns": None,
            "enable": True,
            "definitions": definitions,
            "adding_definitions": None,
            "dropping_definitions": None,
            "states": None,
            "num": len(definitions),
            "ddl_state": 0,
        }

    def shape(self) -> Table:
        """The same table without rows."""
        return replace(
            self,
            columns=list(self.columns),
            indexes=list(self.indexes),
            partitions=list(self.partitions),
            rows=[],
            second=[],
            twice=set(),
            unenforced=set(),
        )

    def shown(self) -> Iterator[tuple[Any, ...]]:
        """Every row so that equal ones are equal."""
        for row in self.rows:
            yield tuple(c.kind.shown(row.values[c.id]) for c in self.columns)
