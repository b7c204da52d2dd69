"""Choose the topic of a table's messages, and what decides on their partition.

A topic is an expression with `{schema}` and `{table}` in it, in which characters that Kafka doesn't
take become `_`, as with TiCDC. Rules are pairs of a glob (`sluice.tidb.table_name.fits`) and a
value; the first that fits decides, else the default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluice.tidb.table_name import TableName, fits

PARTITION_0 = "partition-0"
BY_TABLE = "table"
BY_KEY = "key"
BY_COMMIT_TS = "commit-ts"
BY_COLUMNS = "columns:"
"""Followed by the columns, with commas between."""
DISPATCHES = (PARTITION_0, BY_TABLE, BY_KEY, BY_COMMIT_TS, f"{BY_COLUMNS}A,B")
"""What there is, for messages."""

_MAX_TOPIC_CHARACTERS = 249
_NO_TOPIC_CHARACTER = re.compile(r"[^A-Za-z0-9._-]")
_PLACES = re.compile(r"\{(schema|table)\}")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The rule by which a message gets its partition: one of DISPATCHES without its columns."""

    kind: str = PARTITION_0
    columns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Dispatch:
        """Read one of DISPATCHES. Raises ValueError."""
        if text.startswith(BY_COLUMNS):
            columns = tuple(name.strip() for name in text[len(BY_COLUMNS) :].split(","))
            if all(columns):
                return cls(BY_COLUMNS, columns)
        elif text in DISPATCHES:
            return cls(text)
        raise ValueError(f"{text!r}: must be one of {', '.join(DISPATCHES)}")

    @property
    def by_values(self) -> bool:
        """Return whether the rows' values decide."""
        return self.kind in (BY_KEY, BY_COLUMNS)


@dataclass(frozen=True, slots=True)
class Routing:
    """Where each table's messages go."""

    topic: str = ""
    """The expression of tables that no rule fits."""
    topics: tuple[tuple[str, str], ...] = ()
    """Rules (glob, expression)."""
    dispatch: Dispatch = Dispatch()
    dispatches: tuple[tuple[str, Dispatch], ...] = ()
    """Rules (glob, dispatch)."""

    @property
    def is_one_partition(self) -> bool:
        """Return whether everything goes to partition 0 of one topic."""
        return (
            not self.topics
            and not self.dispatches
            and self.dispatch.kind == PARTITION_0
            and not _PLACES.search(self.topic)
        )

    def expression_of(self, name: TableName) -> str:
        """Return the expression of the table's topic."""
        return next((value for glob, value in self.topics if fits(str(name), glob)), self.topic)

    def topic_of(self, name: TableName) -> str:
        """Return the table's topic."""
        return topic_name(self.expression_of(name), name)

    def dispatch_of(self, name: TableName) -> Dispatch:
        """Return what decides on the partitions of the table's messages."""
        return next(
            (value for glob, value in self.dispatches if fits(str(name), glob)), self.dispatch
        )


def topic_name(expression: str, name: TableName) -> str:
    """Return the topic that an expression means for a table."""
    parts = {"schema": name.schema, "table": name.table}
    found = _PLACES.sub(lambda place: _NO_TOPIC_CHARACTER.sub("_", parts[place[1]]), expression)
    return {".": "_", "..": "__"}.get(found, found)[:_MAX_TOPIC_CHARACTERS]


def check_expression(expression: str) -> None:
    """Raise ValueError for an expression that gives no topic's name."""
    rest = _PLACES.sub("", expression)
    if _NO_TOPIC_CHARACTER.search(rest) or not expression:
        raise ValueError(
            f"{expression!r}: a topic's name has letters, digits, '.', '_' and '-', and"
            " {schema} and {table} stand for the table's"
        )


def is_of_one_table(expression: str) -> bool:
    """Return whether each table has a topic of its own by this expression."""
    return {place[1] for place in _PLACES.finditer(expression)} == {"schema", "table"}
