"""The upstream's schema through time, replayed from TiDB's DDL jobs.

A DDL job carries the whole TableInfo it leaves behind, so no statement is ever parsed to learn a
schema. One exception: TiDB drops the arguments of finished jobs. Of a RENAME TABLE with several
tables only the text then shows which schema each went to (`sluice.tidb.ddl_job`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sluice.tidb import tso
from sluice.tidb.ddl_actions import IGNORED_ACTIONS, MOVES_ROWS, WRITES_TWICE, Action
from sluice.tidb.ddl_job import DdlEffect, parse_renames
from sluice.tidb.folded import folded
from sluice.tidb.id_maps import LiveTables, to_json
from sluice.tidb.job import DdlHistoryJob, HistoryError, job_text, recovered_tables, require_info
from sluice.tidb.old_collations import binary_schema, binary_table
from sluice.tidb.schema import MAX_USER_TABLE_ID, Schema, Table

SYSTEM_SCHEMAS = frozenset(
    {
        "mysql",
        "information_schema",
        "performance_schema",
        "metrics_schema",
        "inspection_schema",
        "sys",
    }
)
_MAX_MOVES_KEPT = 8
_RETENTION_SPAN = tso.span(7 * 86_400_000)
"""Rows that don't know of a job were written by a transaction that began before it, at most a day
before (max-txn-ttl); a dropped database can be recovered until TiDB's garbage collection, mostly
ten minutes.
"""


@dataclass(frozen=True, slots=True)
class RowMove:
    """A job of MOVES_ROWS that is over, with the tables it changed as they were.

    `since`: the schema version of the job before it.
    """

    job: DdlHistoryJob
    before: dict[int, Table]
    effect: DdlEffect
    since: int


@dataclass(frozen=True, slots=True)
class _Dropped:
    """The tables of a database that was dropped at `finished_ts` (TSO)."""

    finished_ts: int
    tables: list[Table]


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
        self.tables = LiveTables()
        self._by_name: dict[int, dict[str, set[int]]] = {}
        for table in tables:
            self._put_table(table.id, table)
        self.schema_version = schema_version
        self.truncated: set[int] = set(truncated)
        self.dropping_columns: set[int] = set()
        self._old_collations = False
        self.changed_at: dict[int, int] = {}
        """The schema version of the last job that changed a table, by its id. It ascends for one
        table; TiDB promises nothing about the versions of jobs of different tables.
        """
        self.moved: dict[int, list[RowMove]] = {}
        """The last few jobs of MOVES_ROWS of each table, under all the ids it had before and after.
        """
        self.written_twice: dict[int, int] = {}
        """When the last job of WRITES_TWICE ended (TSO), by table id."""
        self._dropped_schemas: dict[int, _Dropped] = {}

    @classmethod
    def from_jobs(
        cls, jobs: Iterable[DdlHistoryJob], schema_version: int | None = None
    ) -> "SchemaHistory":
        """Return the state after all finished jobs with a schema version up to `schema_version`.

        None: all jobs. They may come in any order.
        """
        history = cls()
        wanted = [
            j
            for j in jobs
            if j.finished and (schema_version is None or j.schema_version <= schema_version)
        ]
        history.advance(sorted(wanted, key=lambda j: j.schema_version), schema_version)
        return history

    def advance(self, jobs: Iterable[DdlHistoryJob], schema_version: int | None = None) -> None:
        """Apply jobs, in order for each table, and set the version to `schema_version`.

        None: that of the highest job. What only old rows and statements could need is removed.
        Raises HistoryError.
        """
        newest = 0
        for job in jobs:
            self.apply(job)
            newest = max(newest, job.finished_ts)
        if schema_version is not None:
            self.schema_version = schema_version
        self._forget(newest - _RETENTION_SPAN)

    def use_old_collations(self) -> None:
        """Compare bytes in all tables, present and future: the cluster has no new collations."""
        self._old_collations = True
        found = _binary(DdlEffect(dict(self.schemas), dict(self.tables)))
        self.schemas.update((i, s) for i, s in found.schemas.items() if s is not None)
        self.tables.update((i, t) for i, t in found.tables.items() if t is not None)

    def table(self, table_id: int) -> Table | None:
        """Return the table, view or sequence with this id, None if there is none now."""
        return self.tables.get(table_id)

    def find(self, schema_name: str, table_name: str) -> Table | None:
        """Return the table of this name (any case), None if there is none now."""
        wanted = folded(schema_name), folded(table_name)
        return next(
            (t for t in self.tables.values() if (folded(t.schema_name), folded(t.name)) == wanted),
            None,
        )

    def apply(self, job: DdlHistoryJob) -> DdlEffect:
        """Move on by one job and return what it changed.

        Jobs that failed, jobs that are not newer than their table and ignored types change nothing.
        A job of another table may have a higher version although its binlog came first. Raises
        HistoryError when the job lacks what its type needs.
        """
        if not job.finished:
            return DdlEffect()
        if job.starts_dropping_column:
            self.dropping_columns.add(job.table_id)
            return DdlEffect()
        if job.schema_version <= self.changed_at.get(job.table_id, 0):
            return DdlEffect()
        effect = DdlEffect() if job.type in IGNORED_ACTIONS else self._effect(job)
        if self._old_collations:
            effect = _binary(effect)
        if job.type in MOVES_ROWS:
            self._record_move(job, effect)
        if job.type in WRITES_TWICE:
            self.written_twice[job.table_id] = job.finished_ts
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
        self.schema_version = max(self.schema_version, job.schema_version)
        return effect

    def found(self, table: Table) -> None:
        """Take in a table that no job has made, as TiKV has it."""
        self._put_table(table.id, binary_table(table) if self._old_collations else table)

    def _record_move(self, job: DdlHistoryJob, effect: DdlEffect) -> None:
        before = {i: self.tables[i] for i in effect.tables if i in self.tables}
        since = max((self.changed_at.get(i, 0) for i in before), default=0)
        self._put_move(RowMove(job.without_schema(), before, effect, since))

    def _put_move(self, moved: RowMove) -> None:
        for table_id in moved.effect.tables:
            self.moved[table_id] = [*self.moved.get(table_id, [])[1 - _MAX_MOVES_KEPT :], moved]

    def _forget(self, before_ts: int) -> None:
        for table_id, moves in list(self.moved.items()):
            kept = [move for move in moves if move.job.finished_ts >= before_ts]
            if kept:
                self.moved[table_id] = kept
            else:
                del self.moved[table_id]
        self.written_twice = {i: ts for i, ts in self.written_twice.items() if ts >= before_ts}
        self._dropped_schemas = {
            i: d for i, d in self._dropped_schemas.items() if d.finished_ts >= before_ts
        }

    @property
    def has_old_collations(self) -> bool:
        """Return whether `use_old_collations` was called."""
        return self._old_collations

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` makes an equal history of it."""
        moves = {id(move): move for of_table in self.moved.values() for move in of_table}
        return {
            "schema_version": self.schema_version,
            "old_collations": self._old_collations,
            "schemas": [schema.to_json() for schema in self.schemas.values()],
            "tables": to_json(self.tables),
            "truncated": sorted(self.truncated),
            "dropping_columns": sorted(self.dropping_columns),
            "changed_at": {str(table_id): version for table_id, version in self.changed_at.items()},
            "moved": [
                _move_to_json(m) for m in sorted(moves.values(), key=lambda m: m.job.schema_version)
            ],
            "written_twice": {str(table_id): ts for table_id, ts in self.written_twice.items()},
            "dropped_schemas": {
                str(schema_id): {
                    "finished_ts": dropped.finished_ts,
                    "tables": [t.to_json() for t in dropped.tables],
                }
                for schema_id, dropped in self._dropped_schemas.items()
            },
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "SchemaHistory":
        """Parse what `to_json` wrote. Raises SchemaError, KeyError."""
        history = cls(
            map(Schema.from_json, document["schemas"]),
            (),
            document["schema_version"],
            document["truncated"],
        )
        documents = {int(table_id): table for table_id, table in document["tables"].items()}
        history.tables = LiveTables(documents)
        for table_id, table in documents.items():
            history._put_name(table_id, table["schema_id"], table["name"])
        history._old_collations = document["old_collations"]
        history.dropping_columns = set(document["dropping_columns"])
        history.changed_at = {
            int(table_id): version for table_id, version in document["changed_at"].items()
        }
        for move in document["moved"]:
            history._put_move(_move_from_json(move))
        history.written_twice = {
            int(table_id): ts for table_id, ts in document.get("written_twice", {}).items()
        }
        history._dropped_schemas = {
            int(schema_id): _Dropped(
                dropped["finished_ts"], [Table.from_json(t) for t in dropped["tables"]]
            )
            for schema_id, dropped in document["dropped_schemas"].items()
        }
        return history

    def _effect(self, job: DdlHistoryJob) -> DdlEffect:
        match job.type:
            case Action.CREATE_SCHEMA | Action.MODIFY_SCHEMA_CHARSET:
                return DdlEffect(
                    {job.schema_id: Schema.from_tidb(require_info(job, job.db_info, "DBInfo"))}
                )
            case Action.DROP_SCHEMA:
                gone = [
                    self.tables[i]
                    for ids in self._by_name.get(job.schema_id, {}).values()
                    for i in sorted(ids)
                ]
                self._dropped_schemas[job.schema_id] = _Dropped(job.finished_ts, gone)
                return DdlEffect({job.schema_id: None}, {t.id: None for t in gone})
            case Action.RECOVER_SCHEMA:
                return self._recover_schema(job)
            case Action.CREATE_TABLES:
                created: dict[int, Table | None] = {}
                for info in job.table_infos or ((job.table_info,) if job.table_info else ()):
                    if info["id"] <= MAX_USER_TABLE_ID:
                        created.update(self._created(self._table(job, info)))
                return DdlEffect({}, created)
            case (
                Action.CREATE_TABLE
                | Action.CREATE_VIEW
                | Action.RECOVER_TABLE
                | Action.CREATE_SEQUENCE
            ):
                return DdlEffect(
                    {},
                    self._created(self._table(job, require_info(job, job.table_info, "TableInfo"))),
                )
            case Action.DROP_TABLE | Action.DROP_VIEW | Action.DROP_SEQUENCE:
                return DdlEffect({}, {job.table_id: None})
            case Action.TRUNCATE_TABLE:
                self.truncated.add(job.table_id)
            case Action.EXCHANGE_PARTITION:
                return self._exchange_partition(job)
            case Action.RENAME_TABLES:
                return self._rename_tables(job)
        if job.table_info is None:
            return DdlEffect()
        table = self._table(job, job.table_info)
        tables: dict[int, Table | None] = {table.id: table}
        if table.id != job.table_id:  # truncate, and (re)partitioning a table, give it a new id
            tables[job.table_id] = None
        return DdlEffect({}, tables)

    def _put_table(self, table_id: int, table: Table | None) -> None:
        old = self.tables.pop(table_id, None)
        if old is not None:
            self._by_name[old.schema_id][folded(old.name)].discard(table_id)
        if table is not None:
            self.tables[table_id] = table
            self._put_name(table_id, table.schema_id, table.name)

    def _put_name(self, table_id: int, schema_id: int, name: str) -> None:
        self._by_name.setdefault(schema_id, {}).setdefault(folded(name), set()).add(table_id)

    def _table(
        self, job: DdlHistoryJob, info: Mapping[str, Any], schema_id: int | None = None
    ) -> Table:
        schema_id = job.schema_id if schema_id is None else schema_id
        schema = self.schemas.get(schema_id)
        return Table.from_tidb(info, schema_id, schema.name if schema else job.schema_name)

    def _created(self, table: Table) -> dict[int, Table | None]:
        # CREATE OR REPLACE VIEW gives the name to a new id without a job that drops the old one.
        named = self._by_name.get(table.schema_id, {}).get(folded(table.name), ())
        tables: dict[int, Table | None] = dict.fromkeys(sorted(named))
        tables[table.id] = table
        return tables

    def _recover_schema(self, job: DdlHistoryJob) -> DdlEffect:
        schema = Schema.from_tidb(require_info(job, job.db_info, "DBInfo"))
        tables = [
            Table.from_tidb(info, schema.id, schema.name) for info in recovered_tables(job.args)
        ]
        if not tables:
            dropped = self._dropped_schemas.get(schema.id)
            tables = dropped.tables if dropped is not None else []
        return DdlEffect({schema.id: schema}, {t.id: t for t in tables})

    def _exchange_partition(self, job: DdlHistoryJob) -> DdlEffect:
        """Apply an EXCHANGE PARTITION.

        The job names the ordinary table by its old id, the TableInfo is the partitioned table after
        the swap. The ordinary table goes on under the id of the partition, which now has the
        ordinary table's.
        """
        info = require_info(job, job.table_info, "TableInfo")
        before, ordinary = self.tables.get(info["id"]), self.tables.get(job.table_id)
        if before is None or ordinary is None:
            raise HistoryError(
                f"{job_text(job)}: it exchanges table {job.table_id} with {info['id']}; one is"
                " unknown"
            )
        after = Table.from_tidb(info, before.schema_id, before.schema_name)
        new_id = (
            job.args[0]
            if isinstance(job.args, list) and job.args and isinstance(job.args[0], int)
            else None
        )
        if new_id is None:
            lost = partition_ids(before) - partition_ids(after)
            if len(lost) != 1:
                raise HistoryError(
                    f"{job_text(job)}: {len(lost)} partitions of {before.full_name} changed, not 1"
                )
            new_id = lost.pop()
        moved = replace(ordinary, id=new_id)
        return DdlEffect({}, {after.id: after, job.table_id: None, new_id: moved})

    def _rename_tables(self, job: DdlHistoryJob) -> DdlEffect:
        infos = job.table_infos or (require_info(job, job.table_info, "TableInfo"),)
        schema_ids = self._renamed_to(job, infos)
        return DdlEffect(
            {}, {i["id"]: self._table(job, i, s) for i, s in zip(infos, schema_ids, strict=True)}
        )

    def _renamed_to(self, job: DdlHistoryJob, infos: tuple[Mapping[str, Any], ...]) -> list[int]:
        """Return the schema id each table of a RENAME TABLE ends in."""
        args = job.args
        if (
            isinstance(args, list)
            and len(args) > 1
            and isinstance(args[1], list)
            and len(args[1]) == len(infos)
        ):
            return [int(schema_id) for schema_id in args[1]]
        stay = [
            self.tables[i["id"]].schema_id if i["id"] in self.tables else job.schema_id
            for i in infos
        ]
        pairs = parse_renames(job.query)
        if len(pairs) != len(infos):
            return stay
        # A name without a schema belongs to the session's database, and that is where such an old
        # name was found.
        current = next((stay[i] for i, (old, _) in enumerate(pairs) if old is None), job.schema_id)
        by_name = {folded(s.name): s.id for s in self.schemas.values()}
        return [
            current if new is None else by_name.get(folded(new), stay[i])
            for i, (_, new) in enumerate(pairs)
        ]


def _move_to_json(move: RowMove) -> dict[str, Any]:
    before = {str(table_id): table.to_json() for table_id, table in move.before.items()}
    return {
        "job": asdict(move.job),
        "before": before,
        "effect": move.effect.to_json(),
        "since": move.since,
    }


def _move_from_json(document: Mapping[str, Any]) -> RowMove:
    before = {
        int(table_id): Table.from_json(table) for table_id, table in document["before"].items()
    }
    effect = DdlEffect.from_json(document["effect"])
    job = DdlHistoryJob(**document["job"] | {"table_infos": ()})
    return RowMove(
        job, before, DdlEffect(dict(effect.schemas), dict(effect.tables)), document["since"]
    )


def _binary(effect: DdlEffect) -> DdlEffect:
    return DdlEffect(
        {i: s and binary_schema(s) for i, s in effect.schemas.items()},
        {i: t and binary_table(t) for i, t in effect.tables.items()},
    )


def partition_ids(table: Table) -> set[int]:
    """Return the ids of a table's partitions, empty for one without."""
    return {d["id"] for d in (table.partition or {}).get("definitions") or ()}
