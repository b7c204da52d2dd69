"""A DDL job's effect as window records hold it: the keys of a record's `ddls` and `moved`.

No other module knows these keys. JSON that an older version wrote stays readable: a key that it
didn't have yet is taken for what it meant then. Unknown keys are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sluice.tidb.ddl_actions import DROPS_COLUMNS
from sluice.tidb.folded import folded
from sluice.tidb.id_maps import schemas_by_id, tables_by_id, to_json
from sluice.tidb.schema import STATE_DELETE_ONLY, Schema, Table


@dataclass(frozen=True, slots=True)
class DdlEffect:
    """A job's effect, by id; None = gone. Ids that aren't named are as before."""

    schemas: Mapping[int, Schema | None] = field(default_factory=dict)
    tables: Mapping[int, Table | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return `{"schemas": {id: Schema|null}, "tables": {id: Table|null}}`, ids as text.

        `from_json` is the inverse.
        """
        return {"schemas": to_json(self.schemas), "tables": to_json(self.tables)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DdlEffect:
        """Parse what `to_json` wrote."""
        return cls(schemas_by_id(document.get("schemas")), tables_by_id(document.get("tables")))


@dataclass(frozen=True, slots=True)
class DdlJob:
    """A DDL job that was committed, on its way downstream."""

    commit_ts: int
    """The commit ts of its binlog (TSO); `start_ts` is of its binlog, too."""
    start_ts: int = 0
    job_id: int = 0
    schema_state: int = 0
    """The binlog's: DROP COLUMN has a second binlog with an earlier state."""
    query: str = ""
    """The statement as TiDB renders it."""
    type: int = 0
    """See `sluice.tidb.ddl_actions`."""
    schema_version: int = 0
    """The schema version after the job."""
    schema_name: str = ""
    table_name: str = ""
    effect: DdlEffect = field(default_factory=DdlEffect, repr=False)
    time_zone: str = ""
    """The zone in which it converted values; "" where TiDB didn't note it."""
    sql_mode: int | None = None
    """TiDB's bits of the SQL mode in which it converted values; None if TiDB didn't record it."""
    converted_from_ts: int = 0
    """When it began to convert values (TSO); 0: not known."""
    began_ts: int = 0
    """When the job began (TSO).

    It is set, as `finished_ts` (TSO) and `versions` are, only where rows follow the job's steps,
    see MOVES_ROWS.
    """
    finished_ts: int = 0
    versions: tuple[int, ...] = ()
    """Its schema versions, ascending."""
    before: Mapping[int, Table | None] = field(default_factory=dict, repr=False)
    """The tables it changes as they were. A window record leaves them out, for it describes its
    tables as of lo.
    """
    asked: bool = False
    """Whether TiKV gave the definition of the rows around it.

    Then their `schema_version` in the relay log has it, whatever the binlog named.
    """
    ahead: tuple[int, ...] = ()
    """Transactions (start_ts) in windows before that wrote by the definition that it leaves behind,
    though their rows there name an older version.
    """
    row_ids_differ: bool = False
    """Whether a row had different hidden row ids in the old and the new partition while it ran."""

    @property
    def title(self) -> str:
        """Return the job's number, type and commit_ts, for messages."""
        return f"DDL job {self.job_id} at commit_ts {self.commit_ts}"

    @property
    def has_only_begun(self) -> bool:
        """Return whether this is the first of a DROP COLUMN's two binlogs.

        That one leaves the table as it is.
        """
        return self.type in DROPS_COLUMNS and self.schema_state == STATE_DELETE_ONLY

    def table_pairs(self) -> Iterator[tuple[Table, Table]]:
        """Yield every table that is there before and after it.

        PARTITION BY and the like give a table a new id under its old name.
        """
        after = self.effect.tables
        gone = {
            _place(t): t for i, t in self.before.items() if t is not None and after.get(i) is None
        }
        for table_id, table in after.items():
            old = (
                (self.before.get(table_id) or gone.get(_place(table)))
                if table is not None
                else None
            )
            if table is not None and old is not None:
                yield old, table

    def past_move(self, before: Mapping[int, Table | None]) -> FinishedRowMove:
        """Return the rows' move, if it is of MOVES_ROWS.

        `before`: the tables before its changes.
        """
        return FinishedRowMove(
            self.type,
            self.job_id,
            self.began_ts,
            self.finished_ts,
            self.schema_version,
            self.versions,
            before,
            self.effect,
            self.asked,
            self.ahead,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a window record has it."""
        document = {name: getattr(self, name) for name in _PLAIN}
        document["effect"] = self.effect.to_json()
        document |= {
            name: getattr(self, name) for name in ("time_zone", "sql_mode", "converted_from_ts")
        }
        if self.versions:
            document |= {
                "began_ts": self.began_ts,
                "finished_ts": self.finished_ts,
                "versions": list(self.versions),
            }
        if self.asked:
            document["asked"] = True
        if self.ahead:
            document["ahead"] = list(self.ahead)
        if self.row_ids_differ:
            document["row_ids_differ"] = True
        if self.before:
            document["before"] = to_json(self.before)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Parse what `to_json` wrote.

        Raises KeyError without a commit_ts; SchemaError comes when a table is read.
        """
        return cls(**_values(document))


@dataclass(frozen=True, slots=True)
class FinishedRowMove:
    """A job of MOVES_ROWS that is over, for rows of a later window that don't know of it.

    The fields are a DdlJob's.
    """

    type: int
    job_id: int
    began_ts: int
    finished_ts: int
    schema_version: int
    versions: tuple[int, ...]
    before: Mapping[int, Table | None] = field(repr=False)
    effect: DdlEffect = field(repr=False)
    asked: bool = False
    ahead: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a window record has it."""
        document: dict[str, Any] = {
            "type": self.type,
            "job_id": self.job_id,
            "began_ts": self.began_ts,
            "finished_ts": self.finished_ts,
            "schema_version": self.schema_version,
            "versions": list(self.versions),
            "before": to_json(self.before),
            "effect": self.effect.to_json(),
        }
        return document | ({"asked": True} if self.asked else {})

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FinishedRowMove:
        """Parse what `to_json` wrote."""
        return DdlJob.from_json({"commit_ts": 0, **document}).past_move(
            tables_by_id(document["before"])
        )


_PLAIN = (
    "commit_ts",
    "start_ts",
    "job_id",
    "schema_state",
    "query",
    "type",
    "schema_version",
    "schema_name",
    "table_name",
)


def _values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a DdlJob."""
    numbers = (
        "start_ts",
        "job_id",
        "schema_state",
        "type",
        "schema_version",
        "converted_from_ts",
        "began_ts",
        "finished_ts",
    )
    mode = document.get("sql_mode")
    return {
        "commit_ts": int(document["commit_ts"]),
        **{name: int(document.get(name) or 0) for name in numbers},
        **{
            name: str(document.get(name) or "")
            for name in ("query", "schema_name", "table_name", "time_zone")
        },
        "sql_mode": None if mode is None else int(mode),
        "versions": tuple(int(version) for version in document.get("versions") or ()),
        "effect": DdlEffect.from_json(document.get("effect") or {}),
        "before": tables_by_id(document.get("before")),
        "asked": bool(document.get("asked")),
        "ahead": tuple(int(start_ts) for start_ts in document.get("ahead") or ()),
        "row_ids_differ": bool(document.get("row_ids_differ")),
    }


def _place(table: Table) -> tuple[str, str]:
    return folded(table.schema_name), folded(table.name)


_TOKEN = re.compile(
    r"""`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|/\*.*?\*/|--[^\n]*|\#[^\n]*|\s+|([\w$\x80-\U0010ffff]+)|(.)""",
    re.DOTALL,
)


def parse_renames(query: str) -> list[tuple[str | None, str | None]]:
    """Return (old schema, new schema) of each pair of a RENAME TABLE statement.

    None where the name has none. There are no strings in it, so double quotes are around names,
    whatever the session's mode was.
    """
    words: list[tuple[str, bool]] = []  # a word, and whether it is a name for certain
    for tick, quoted, word, sign in _TOKEN.findall(query):
        if tick or quoted:
            words.append((tick.replace("``", "`") if tick else quoted.replace('""', '"'), True))
        elif word or sign:
            words.append((word or sign, False))
    pairs, at = [], 2  # RENAME TABLE
    while at < len(words) and words[at] != (";", False):
        old, at = _schema_of(words, at)
        new, at = _schema_of(words, at + 1)
        pairs.append((old, new))
        at += 1
    return pairs


def _schema_of(words: list[tuple[str, bool]], at: int) -> tuple[str | None, int]:
    """Return the schema of the name at a place, and the place behind it."""
    if at + 2 < len(words) and words[at + 1] == (".", False):
        return words[at][0], at + 3
    return None, at + 1
