"""The upstream's schema through time, replayed from TiDB's DDL jobs.

A DDL job carries the whole TableInfo it leaves behind, so no statement is ever parsed to learn a schema. One exception:
TiDB drops the arguments of finished jobs, and RENAME TABLE with several tables then says nowhere which schema each went
to but in its text (`_renames`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from upstream.old_collations import binary_schema, binary_table
from upstream.schema import STATE_DELETE_ONLY, Schema, Table


class Action(IntEnum):
    """The job types that this module treats in their own way; all others replace the TableInfo of the same id."""

    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    DROP_COLUMN = 6
    DROP_INDEX = 8
    TRUNCATE_TABLE = 11
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    DROP_SEQUENCE = 36
    DROP_COLUMNS = 38
    EXCHANGE_PARTITION = 42
    RENAME_TABLES = 47
    DROP_INDEXES = 48
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    RECOVER_SCHEMA = 63
    PARTITION_TABLE = 71
    REMOVE_PARTITIONING = 72


IGNORED_ACTIONS = frozenset({27, 28, 31, 49, 50, 51, 52, 53, 54, 55, 56, 57, 59, 68, 69, 70})
"""Job types that change nothing a downstream has: table locks, TiFlash progress, attributes, placement, table cache,
resource groups."""

MOVES_ROWS = frozenset(
    {
        Action.DROP_PARTITION,
        Action.TRUNCATE_PARTITION,
        Action.EXCHANGE_PARTITION,
        Action.PARTITION_TABLE,
        Action.REMOVE_PARTITIONING,
    }
)
"""Job types after which rows that were written by the definition before lie elsewhere, or nowhere."""

SYSTEM_SCHEMAS = frozenset(
    {"mysql", "information_schema", "performance_schema", "metrics_schema", "inspection_schema", "sys"}
)
MAX_USER_TABLE_ID = 0xFFFFFFFFFFFF - 1000
"""Table ids above belong to TiDB's internal DDL tables."""

_DONE, _SYNCED = 4, 6
_MOVES_KEPT = 8


class HistoryError(ValueError):
    """A DDL job that can't be applied; names the job and what is missing."""


@dataclass(frozen=True, slots=True)
class Job:
    """A DDL job. `schema_version` 0 means that it changed nothing (failed or cancelled)."""

    id: int
    type: int
    state: int
    schema_state: int
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    query: str
    schema_version: int
    finished_ts: int
    args: Any = field(repr=False)
    db_info: Mapping[str, Any] | None = field(repr=False)
    table_info: Mapping[str, Any] | None = field(repr=False)
    table_infos: tuple[Mapping[str, Any], ...] = field(repr=False)
    start_ts: int = 0
    """TSO from which on the job ran: nothing that it changed can be older."""
    time_zone: str = ""
    """The zone in which the job converted values, a name or an offset like ``+08:00``; "" where TiDB didn't note it."""
    sql_mode: int | None = None
    """The SQL mode in which the job converted values, TiDB's bits; None where TiDB didn't note it."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any], schema_state: int | None = None) -> "Job":
        """From a job's JSON as the DDL job history holds it. `schema_state`: the binlog's ddl_schema_state, where the
        job was found through a binlog: the history only knows the last state, the extra binlog of DROP COLUMN has an
        earlier one.
        """
        try:
            binlog, reorg = document.get("binlog") or {}, document.get("reorg_meta") or {}
            state = document.get("schema_state") if schema_state is None else schema_state
            return cls(
                id=int(document["id"]),
                type=int(document["type"]),
                state=int(document.get("state") or 0),
                schema_state=int(state or 0),
                schema_id=int(document.get("schema_id") or 0),
                table_id=int(document.get("table_id") or 0),
                schema_name=document.get("schema_name") or "",
                table_name=document.get("table_name") or "",
                query=document.get("query") or "",
                schema_version=int(binlog.get("SchemaVersion") or 0),
                finished_ts=int(binlog.get("FinishedTS") or 0),
                args=document.get("raw_args"),
                db_info=binlog.get("DBInfo"),
                table_info=binlog.get("TableInfo"),
                table_infos=tuple(binlog.get("MultipleTableInfos") or ()),
                start_ts=int(document.get("real_start_ts") or document.get("start_ts") or 0),
                time_zone=_time_zone(reorg.get("location") or {}),
                sql_mode=None if reorg.get("sql_mode") is None else int(reorg["sql_mode"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HistoryError(f"a DDL job document lacks or garbles {error}") from error

    def session(self) -> dict[str, Any]:
        """What a window record says of the session in which the job converted values."""
        return {"time_zone": self.time_zone, "sql_mode": self.sql_mode, "converted_from_ts": self.start_ts}

    @property
    def finished(self) -> bool:
        """The job succeeded and left a schema version."""
        return self.state in (_DONE, _SYNCED) and self.schema_version > 0

    @property
    def starts_dropping_column(self) -> bool:
        """This is the extra event of DROP COLUMN: rows stop carrying the column, the table still has it."""
        return self.type in (Action.DROP_COLUMN, Action.DROP_COLUMNS) and self.schema_state == STATE_DELETE_ONLY


@dataclass(frozen=True, slots=True)
class Effect:
    """What one job leaves behind, by id; None = gone. Ids that aren't named are as before."""

    schemas: dict[int, Schema | None] = field(default_factory=dict)
    tables: dict[int, Table | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """`{"schemas": {id: Schema|null}, "tables": {id: Table|null}}`, ids as text; `from_json` is the inverse."""
        return {
            "schemas": {str(i): s and s.to_json() for i, s in self.schemas.items()},
            "tables": {str(i): t and t.to_json() for i, t in self.tables.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Effect":
        """The inverse of `to_json`."""
        return cls(
            {int(i): s and Schema.from_json(s) for i, s in document["schemas"].items()},
            {int(i): t and Table.from_json(t) for i, t in document["tables"].items()},
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """A job of MOVES_ROWS that is over, with the tables it changed as they were. `since`: the schema version of the job
    before it.
    """

    job: Job
    before: dict[int, Table]
    effect: Effect
    since: int


class SchemaHistory:
    """Schemas and tables as of one schema version; `apply` moves it on, job by job."""

    def __init__(
        self,
        schemas: Iterable[Schema] = (),
        tables: Iterable[Table] = (),
        schema_version: int = 0,
        truncated: Iterable[int] = (),
    ) -> None:
        self.schemas: dict[int, Schema] = {s.id: s for s in schemas}
        # TiDB >= 6.2 creates this one without a job.
        self.schemas.setdefault(1, Schema(1, "mysql", "utf8mb4", "utf8mb4_bin"))
        self.tables: dict[int, Table] = {}
        self._by_name: dict[int, dict[str, set[int]]] = {}
        for table in tables:
            self._put_table(table.id, table)
        self.schema_version = schema_version
        self.truncated: set[int] = set(truncated)
        self.dropping_columns: set[int] = set()
        self._old_collations = False
        self.changed_at: dict[int, int] = {}
        """The schema version of the last job that changed a table, by its id."""
        self.moved: dict[int, list[Moved]] = {}
        """The last few jobs of MOVES_ROWS of each table, under all the ids it had before and after."""
        self._dropped_schemas: dict[int, list[Table]] = {}

    @classmethod
    def from_jobs(cls, jobs: Iterable[Job], schema_version: int | None = None) -> "SchemaHistory":
        """The state after all finished jobs with a schema version up to `schema_version` (None: all), whatever order
        they come in."""
        history = cls()
        wanted = [j for j in jobs if j.finished and (schema_version is None or j.schema_version <= schema_version)]
        for job in sorted(wanted, key=lambda j: j.schema_version):
            history.apply(job)
        if schema_version is not None:
            history.schema_version = schema_version
        return history

    def use_old_collations(self) -> None:
        """The cluster has none of the new collations: all that is known, and all to come, compares bytes."""
        self._old_collations = True
        found = _binary(Effect(dict(self.schemas), dict(self.tables)))
        self.schemas.update((i, s) for i, s in found.schemas.items() if s is not None)
        self.tables.update((i, t) for i, t in found.tables.items() if t is not None)

    def table(self, table_id: int) -> Table | None:
        """The table, view or sequence with this id, None if there is none now."""
        return self.tables.get(table_id)

    def find(self, schema_name: str, table_name: str) -> Table | None:
        """The table of this name (any case), None if there is none now."""
        wanted = schema_name.lower(), table_name.lower()
        return next((t for t in self.tables.values() if (t.schema_name.lower(), t.name.lower()) == wanted), None)

    def is_truncated(self, table_id: int) -> bool:
        """Late changes with this id belong to a table that TRUNCATE has emptied since: they are to be dropped."""
        return table_id in self.truncated

    def apply(self, job: Job) -> Effect:
        """Move on by one job and tell what it changed. Jobs that failed, jobs at or below the current schema version
        and ignored types change nothing. Raises HistoryError when the job lacks what its type needs.
        """
        if not job.finished:
            return Effect()
        if job.starts_dropping_column:
            self.dropping_columns.add(job.table_id)
            return Effect()
        if job.schema_version <= self.schema_version:
            return Effect()
        effect = Effect() if job.type in IGNORED_ACTIONS else self._effect(job)
        if self._old_collations:
            effect = _binary(effect)
        if job.type in MOVES_ROWS:
            self._note_move(job, effect)
        for schema_id, schema in effect.schemas.items():
            if schema is None:
                self.schemas.pop(schema_id, None)
            else:
                self.schemas[schema_id] = schema
        for table_id, table in effect.tables.items():
            self._put_table(table_id, table)
            if table is not None:
                self.truncated.discard(table_id)
            self.dropping_columns.discard(table_id)
            self.changed_at[table_id] = job.schema_version
        self.schema_version = job.schema_version
        return effect

    def _note_move(self, job: Job, effect: Effect) -> None:
        before = {i: self.tables[i] for i in effect.tables if i in self.tables}
        since = max((self.changed_at.get(i, 0) for i in before), default=0)
        for table_id in effect.tables:
            self.moved[table_id] = [*self.moved.get(table_id, [])[1 - _MOVES_KEPT :], Moved(job, before, effect, since)]

    def should_send(self, job: Job) -> bool:
        """Whether the statement concerns a downstream: the job finished, is of a type with a meaning there, isn't the
        extra event of DROP COLUMN and isn't about TiDB's own schemas."""
        if not job.finished or job.type in IGNORED_ACTIONS or job.starts_dropping_column:
            return False
        schema = self.schemas.get(job.schema_id)
        return (schema.name if schema else job.schema_name).lower() not in SYSTEM_SCHEMAS

    def _effect(self, job: Job) -> Effect:
        match job.type:
            case Action.CREATE_SCHEMA | Action.MODIFY_SCHEMA_CHARSET:
                return Effect({job.schema_id: Schema.from_tidb(_need(job, job.db_info, "DBInfo"))})
            case Action.DROP_SCHEMA:
                gone = [self.tables[i] for ids in self._by_name.get(job.schema_id, {}).values() for i in sorted(ids)]
                self._dropped_schemas[job.schema_id] = gone
                return Effect({job.schema_id: None}, {t.id: None for t in gone})
            case Action.RECOVER_SCHEMA:
                return self._recover_schema(job)
            case Action.CREATE_TABLES:
                effect = Effect()
                for info in job.table_infos or ((job.table_info,) if job.table_info else ()):
                    if info["id"] <= MAX_USER_TABLE_ID:
                        effect.tables.update(self._created(self._table(job, info)))
                return effect
            case Action.CREATE_TABLE | Action.CREATE_VIEW | Action.RECOVER_TABLE | Action.CREATE_SEQUENCE:
                return Effect({}, self._created(self._table(job, _need(job, job.table_info, "TableInfo"))))
            case Action.DROP_TABLE | Action.DROP_VIEW | Action.DROP_SEQUENCE:
                return Effect({}, {job.table_id: None})
            case Action.TRUNCATE_TABLE:
                self.truncated.add(job.table_id)
            case Action.EXCHANGE_PARTITION:
                return self._exchange_partition(job)
            case Action.RENAME_TABLES:
                return self._rename_tables(job)
        if job.table_info is None:
            return Effect()
        table = self._table(job, job.table_info)
        tables: dict[int, Table | None] = {table.id: table}
        if table.id != job.table_id:  # truncate, and (re)partitioning a table, give it a new id
            tables[job.table_id] = None
        return Effect({}, tables)

    def _put_table(self, table_id: int, table: Table | None) -> None:
        old = self.tables.pop(table_id, None)
        if old is not None:
            self._by_name[old.schema_id][old.name.lower()].discard(table_id)
        if table is not None:
            self.tables[table_id] = table
            self._by_name.setdefault(table.schema_id, {}).setdefault(table.name.lower(), set()).add(table_id)

    def _table(self, job: Job, info: Mapping[str, Any], schema_id: int | None = None) -> Table:
        schema_id = job.schema_id if schema_id is None else schema_id
        schema = self.schemas.get(schema_id)
        return Table.from_tidb(info, schema_id, schema.name if schema else job.schema_name)

    def _created(self, table: Table) -> dict[int, Table | None]:
        # CREATE OR REPLACE VIEW gives the name to a new id without a job that drops the old one.
        named = self._by_name.get(table.schema_id, {}).get(table.name.lower(), ())
        tables: dict[int, Table | None] = dict.fromkeys(sorted(named))
        tables[table.id] = table
        return tables

    def _recover_schema(self, job: Job) -> Effect:
        schema = Schema.from_tidb(_need(job, job.db_info, "DBInfo"))
        tables = [Table.from_tidb(info, schema.id, schema.name) for info in _recovered_tables(job.args)]
        if not tables:
            tables = self._dropped_schemas.get(schema.id, [])
        return Effect({schema.id: schema}, {t.id: t for t in tables})

    def _exchange_partition(self, job: Job) -> Effect:
        """The job names the ordinary table by its old id, the TableInfo is the partitioned table after the swap. The
        ordinary table goes on under the id of the partition, which now has the ordinary table's."""
        info = _need(job, job.table_info, "TableInfo")
        before, ordinary = self.tables.get(info["id"]), self.tables.get(job.table_id)
        if before is None or ordinary is None:
            raise HistoryError(f"{_about(job)}: it exchanges table {job.table_id} with {info['id']}; one is unknown")
        after = Table.from_tidb(info, before.schema_id, before.schema_name)
        new_id = job.args[0] if isinstance(job.args, list) and job.args and isinstance(job.args[0], int) else None
        if new_id is None:
            lost = _partition_ids(before) - _partition_ids(after)
            if len(lost) != 1:
                raise HistoryError(f"{_about(job)}: {len(lost)} partitions of {before.full_name} changed, not 1")
            new_id = lost.pop()
        moved = replace(ordinary, id=new_id)
        return Effect({}, {after.id: after, job.table_id: None, new_id: moved})

    def _rename_tables(self, job: Job) -> Effect:
        infos = job.table_infos or (_need(job, job.table_info, "TableInfo"),)
        schema_ids = self._renamed_to(job, infos)
        return Effect({}, {i["id"]: self._table(job, i, s) for i, s in zip(infos, schema_ids, strict=True)})

    def _renamed_to(self, job: Job, infos: tuple[Mapping[str, Any], ...]) -> list[int]:
        """The schema id each table of a RENAME TABLE ends in."""
        args = job.args
        if isinstance(args, list) and len(args) > 1 and isinstance(args[1], list) and len(args[1]) == len(infos):
            return [int(schema_id) for schema_id in args[1]]
        stay = [self.tables[i["id"]].schema_id if i["id"] in self.tables else job.schema_id for i in infos]
        pairs = _renames(job.query)
        if len(pairs) != len(infos):
            return stay
        # A name without a schema belongs to the session's database, and that is where such an old name was found.
        current = next((stay[i] for i, (old, _) in enumerate(pairs) if old is None), job.schema_id)
        by_name = {s.name.lower(): s.id for s in self.schemas.values()}
        return [current if new is None else by_name.get(new.lower(), stay[i]) for i, (_, new) in enumerate(pairs)]


def _binary(effect: Effect) -> Effect:
    return Effect(
        {i: s and binary_schema(s) for i, s in effect.schemas.items()},
        {i: t and binary_table(t) for i, t in effect.tables.items()},
    )


def _time_zone(location: Mapping[str, Any]) -> str:
    """From TiDB's TimeZoneLocation: seconds east of UTC, then the name means nothing (it is UTC), or a zone's name."""
    offset = int(location.get("offset") or 0)
    minutes = abs(offset) // 60
    if offset:
        return f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    name = str(location.get("name") or "")
    return (
        "Local" if name.lower() in ("local", "system") else name
    )  # of TiDB's machine: no server knows it by this name


def _about(job: Job) -> str:
    return f"DDL job {job.id} (type {job.type}, schema version {job.schema_version}, {job.query[:80]!r})"


def _need(job: Job, value: Mapping[str, Any] | None, what: str) -> Mapping[str, Any]:
    if value is None:
        raise HistoryError(f"{_about(job)} carries no {what}")
    return value


def _partition_ids(table: Table) -> set[int]:
    return {d["id"] for d in (table.partition or {}).get("definitions") or ()}


def _recovered_tables(args: Any) -> list[Mapping[str, Any]]:
    first = args[0] if isinstance(args, list) and args else args
    found = first.get("RecoverTabsInfo") if isinstance(first, Mapping) else None
    return [t["TableInfo"] for t in found or () if isinstance(t, Mapping) and t.get("TableInfo")]


_TOKEN = re.compile(
    r"""`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|/\*.*?\*/|--[^\n]*|\#[^\n]*|\s+|([\w$\x80-\U0010ffff]+)|(.)""", re.DOTALL
)


def _renames(query: str) -> list[tuple[str | None, str | None]]:
    """(old schema, new schema) of each pair of a RENAME TABLE statement, None where the name has none. There are no
    strings in it, so double quotes are around names, whatever the session's mode was.
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
    """The schema of the name at a place, and the place behind it."""
    if at + 2 < len(words) and words[at + 1] == (".", False):
        return words[at][0], at + 3
    return None, at + 1
