"""Random transactions: which rows come, change and go."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from typing import Any

from tests.judge.features import FEATURES
from tests.judge.invented_tidb import Upstream
from tests.judge.kinds import Kind
from tests.judge.tables import Column, Table

_CHAR = 254
_LARGE = {0xFC: (6_000, 20_000, 65_000), 0xFB: (20_000, 70_000, 600_000)}
"""Bytes of large values by column type: rows for a statement, for a file that is sent ahead, and
too large for that.
"""
_ZEROS = {
    "date": "0000-00-00",
    "datetime": "0000-00-00 00:00:00",
    "timestamp": "0000-00-00 00:00:00",
    "enum": "",
}
"""By family, what sessions that aren't strict write."""
_CROWDS = (20, 70, 150)
_MANY_ROWS = 60


class Writing:
    """Writes to an `Upstream`'s tables."""

    def __init__(self, rng: random.Random, features: Collection[str]) -> None:
        self.rng = rng
        self.features = frozenset(features)
        self.upstream = Upstream(
            rng, new_collation=not (self.has("old collations") and rng.random() < 0.4)
        )
        self._alike: list[Table] = []
        """Tables that were made alike."""

    def has(self, feature: str) -> bool:
        """Whether the history may hold it."""
        assert feature in FEATURES, feature
        return feature in self.features

    def _table(self, suits: Callable[[Table], bool] = lambda table: True) -> Table:
        found = [t for t in self.upstream.tables.values() if suits(t)]
        return self.rng.choice(found)

    def writes(self) -> list[Callable[[], None]]:
        """Ways to write something, the usual ones more often."""
        writes: list[Callable[[], None]] = [self._write] * 4
        if self.has("crowds"):
            writes.append(self._write_crowd)
        if any(table.id in self.upstream.tables for table in self._alike):
            writes += [self._write_to_all] * 2
        if self.upstream.merged:
            writes.append(self._write_merged)
        return writes

    def _write_crowd(self) -> None:
        """One transaction changes many rows of a table."""
        transaction, table = self.upstream.transaction(), self._table()
        kinds = self.rng.choice(
            (("insert",), ("update",), ("delete",), ("insert", "update", "delete", "swap"))
        )
        if len(table.rows) > _MANY_ROWS:
            kinds = self.rng.choice((kinds, ("delete",)))
        for _ in range(self.rng.choice(_CROWDS)):
            self._change(transaction, table, kinds)
        transaction.commit()

    def _write_to_all(self) -> None:
        """One transaction changes some rows of each of the tables that were made alike."""
        transaction = self.upstream.transaction()
        for table in self._alike:
            for _ in range(self.rng.randint(0, 4) if table.id in self.upstream.tables else 0):
                self._change(transaction, table)
        transaction.commit()

    def _write_merged(self) -> None:
        """One transaction changes rows of tables that are one downstream: a row may also go from
        one to another.
        """
        transaction, tables = self.upstream.transaction(), self.upstream.merged
        for _ in range(self.rng.choice((3, 8, 40))):
            table = self.rng.choice(tables)
            if table.rows and self.rng.random() < 0.2:
                row = self.rng.choice(table.rows)
                transaction.delete(table, row)
                values = table.named_values(row)
                transaction.insert(
                    self.rng.choice(tables),
                    {c.name: values[c.name] for c in table.columns if c.generated is None},
                )
            else:
                self._change(transaction, table)
        transaction.commit()

    def _write(self, version: int | None = None, only: Table | None = None) -> None:
        transaction = self.upstream.transaction(version)
        for _ in range(self.rng.randint(1, 6)):
            self._change(transaction, only or self._table())
        transaction.commit()

    def _change(
        self,
        transaction: Any,
        table: Table,
        kinds: Sequence[str] = ("insert", "insert", "update", "update", "delete", "swap"),
    ) -> None:
        kind = self.rng.choice(kinds if table.rows else ("insert",))
        if kind == "insert":
            transaction.insert(table, self._new_row(table, wide=len(kinds) == 1))
        elif kind == "delete":
            transaction.delete(table, self.rng.choice(table.rows))
        elif kind == "swap":
            self._swap(transaction, table)
        else:
            row = self.rng.choice(table.rows)
            plain = [c for c in table.columns if c.generated is None]
            chosen = self.rng.sample(plain, min(len(plain), self.rng.randint(1, 2)))
            transaction.update(table, row, {c.name: self._value(c) for c in chosen})

    def _swap(self, transaction: Any, table: Table) -> None:
        in_handle = table.primary.columns if table.primary and table.clustered else ()
        keys = [
            i
            for i in table.indexes
            if i.unique
            and not i.primary
            and len(i.columns) == 1
            and i.columns[0] not in in_handle
            and i.name not in table.unenforced
        ]
        if not self.has("swaps") or not keys or len(table.rows) < 2 or table.partitions:
            return
        rows = self.rng.sample(table.rows, self.rng.randint(2, min(4, len(table.rows))))
        transaction.swap(table, rows, self.rng.choice(keys).columns[0])

    def _new_row(self, table: Table, *, wide: bool) -> dict[str, Any]:
        """`wide`: its key is mostly one that no row has."""
        if (
            self.has("duplicates")
            and table.handle_kind == "heap"
            and table.rows
            and self.rng.random() < 0.4
        ):
            values = table.named_values(self.rng.choice(table.rows))
            return {c.name: values[c.name] for c in table.columns if c.generated is None}
        values = self._values(table)
        first = table.columns[0]
        if wide and first.kind.family == "int" and first.generated is None and not table.partitions:
            values[first.name] = self.rng.randint(0, 120)
        return values

    def _values(self, table: Table) -> dict[str, Any]:
        return {c.name: self._value(c) for c in table.columns if c.generated is None}

    def _value(self, column: Column) -> Any:
        if column.nullable and self.rng.random() < 0.15:
            return None
        if self.has("zeros") and column.kind.family in _ZEROS and self.rng.random() < 0.1:
            zero = _ZEROS[column.kind.family]
            return zero + f".{'0' * column.kind.decimal}" if column.kind.decimal else zero
        if self.has("large values") and column.kind.tp in _LARGE and self.rng.random() < 0.06:
            return self._large(column.kind)
        value = column.kind.value(self.rng)
        if column.kind.is_text and not self.has("odd bytes"):
            value = without_odd_bytes(value, column.kind)
        if column.kind.family == "decimal" and not self.has("decimal keys"):
            value = value if abs(value) < 100 else Decimal(f"{7:.{column.kind.decimal}f}")
        return value

    def _large(self, kind: Kind) -> bytes:
        if kind.values:  # of a special look
            return kind.value(self.rng)  # type: ignore[no-any-return] # bytes, as of all that is long
        piece = b"it's\\\t\n" if kind.is_text or self.rng.random() < 0.5 else self.rng.randbytes(7)
        size = self.rng.choice(_LARGE[kind.tp])
        return (piece * (size // 7 + 1))[:size]


def without_odd_bytes(value: bytes, kind: Kind) -> bytes:
    """Return a text without what needs escapes.

    A CHAR loses the blanks that come to its end by that, as in TiDB.
    """
    if not value.isascii():
        return value
    kept = bytes(byte for byte in value if byte not in b"'\"\\%\0\x1a\n\t`")
    return kept.rstrip(b" ") if kind.tp == _CHAR else kept


def is_zero(value: Any, kind: Kind) -> bool:
    """Whether it is one of those that sessions that aren't strict write."""
    return value is not None and kind.family in _ZEROS and value[:19] == _ZEROS[kind.family]
