"""Write DDL as TiDB does it.

The transaction that finishes the job with its binlogs comes first, then the job in the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.devstack.tidb.ddl_history import DDLHistory
from sluice.devstack.tidb.oracle import Oracle
from sluice.devstack.tidb.sql import Versions
from sluice.devstack.tidb.store import Store
from sluice.tidb import pb
from sluice.tidb.column_types import FLAG_NO_DEFAULT, FLAG_NOT_NULL, FLAG_PRIMARY_KEY
from sluice.tidb.ddl_actions import Action
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import hash_field_key

_PUBLIC = 5
_SYNCED = 6
_CHARSET, _COLLATE = "utf8mb4", "utf8mb4_bin"


class Writer(Protocol):
    """A pump client, see sluice.devstack.tidb.player.PumpWriter."""

    async def prewrite(self, start_ts: int, payload: bytes) -> None: ...

    async def finish(self, start_ts: int, payload: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column to create: MySQL type number, display length, its SQL, and its default, if any."""

    name: str
    tp: int
    flen: int
    sql: str
    text: bool = False
    primary: bool = False
    nullable: bool = False
    default: str | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """A DDL job as it is asked for; `table_id` and `table_name` of a job about a table only."""

    type: int
    query: str
    schema_id: int
    schema_name: str
    table_id: int = 0
    table_name: str = ""


class DDLWriter:
    """Create schemas and tables upstream; one statement at a time, as TiDB's DDL owner."""

    def __init__(
        self, writer: Writer, oracle: Oracle, store: Store, history: DDLHistory, versions: Versions
    ) -> None:
        self._writer = writer
        self._oracle = oracle
        self._store = store
        self._history = history
        self._versions = versions

    async def create_schema(self, name: str) -> int:
        """Create a database, and return its id."""
        schema_id = self._history.allocate_id()
        info = {
            "id": schema_id,
            "db_name": _cistr(name),
            "charset": _CHARSET,
            "collate": _COLLATE,
            "state": _PUBLIC,
            "policy_ref_info": None,
        }
        query = f"CREATE DATABASE {_quoted(name)}"
        await self._finish_job(
            _Job(Action.CREATE_SCHEMA, query, schema_id, name),
            ("DBs", f"DB:{schema_id}"),
            {"DBInfo": info},
        )
        return schema_id

    async def create_table(
        self, schema_id: int, schema: str, name: str, columns: list[ColumnSpec]
    ) -> Table:
        """Create a table with a BIGINT primary key as handle.

        Returns it as its readers will see it.
        """
        table_id = self._history.allocate_id()
        body = ",".join(f"{_quoted(c.name)} {c.sql}" for c in columns)
        ts = await self._oracle.take()
        info = _table_info(table_id, name, columns, ts)
        query = f"CREATE TABLE {_quoted(schema)}.{_quoted(name)} ({body})"
        await self._finish_job(
            _Job(Action.CREATE_TABLE, query, schema_id, schema, table_id, name),
            (f"DB:{schema_id}", f"Table:{table_id}"),
            {"TableInfo": info},
        )
        return Table.from_tidb(info, schema_id, schema)

    async def add_column(self, table: Table, info: Mapping[str, Any], column: ColumnSpec) -> None:
        """Add a column behind the others. `info`: TiDB's TableInfo of the table."""
        number = info["max_col_id"] + 1
        changed = {
            **info,
            "cols": [*info["cols"], _column_info(column, number)],
            "max_col_id": number,
            "update_timestamp": await self._oracle.take(),
        }
        names = f"{_quoted(table.schema_name)}.{_quoted(table.name)}"
        query = f"ALTER TABLE {names} ADD COLUMN {_quoted(column.name)} {column.sql}"
        await self._finish_job(
            _Job(
                Action.ADD_COLUMN, query, table.schema_id, table.schema_name, table.id, table.name
            ),
            (f"DB:{table.schema_id}", f"Table:{table.id}"),
            {"TableInfo": changed},
        )

    async def _finish_job(
        self, job: _Job, hash_field: tuple[str, str], result: dict[str, Any]
    ) -> None:
        queued_ts = await self._oracle.take()
        start_ts = await self._oracle.take()
        job_id = self._history.allocate_id()
        version = self._history.schema_version + 1
        key = hash_field_key(hash_field[0], hash_field[1].encode())
        binlog = pb.binlog.Binlog(
            tp=pb.binlog.Prewrite,
            start_ts=start_ts,
            commit_ts=0,
            prewrite_key=key,
            ddl_query=f"{job.query};".encode(),
            ddl_job_id=job_id,
            ddl_schema_state=_PUBLIC,
        )
        self._store.prewrite(key, start_ts)
        await self._writer.prewrite(start_ts, binlog.SerializeToString())
        commit_ts = await self._oracle.take()
        # The history entry is written by the next transaction of the DDL owner.
        finished_ts = await self._oracle.take()
        document = {
            "id": job_id,
            "type": job.type,
            "schema_id": job.schema_id,
            "table_id": job.table_id,
            "schema_name": job.schema_name,
            "table_name": job.table_name,
            "state": _SYNCED,
            "warning": None,
            "err": None,
            "err_count": 0,
            "row_count": 0,
            "raw_args": None,
            "schema_state": _PUBLIC,
            "snapshot_ver": 0,
            "real_start_ts": start_ts,
            "start_ts": queued_ts,
            "dependency_id": 0,
            "query": job.query,
            "binlog": {
                "SchemaVersion": version,
                "DBInfo": None,
                "TableInfo": None,
                "FinishedTS": finished_ts,
                "MultipleTableInfos": None,
                **result,
            },
            "version": 1,
            "reorg_meta": None,
            "multi_schema_info": None,
            "priority": 0,
            "seq_num": version,
        }
        # Don't wait in between: a resolved timestamp above commit_ts promises that all is there.
        self._store.commit(key, start_ts, commit_ts)
        self._store.put(key, json.dumps(next(iter(result.values()))).encode(), commit_ts, start_ts)
        self._history.add(document, commit_ts, start_ts)
        binlog.tp, binlog.commit_ts = pb.binlog.Commit, commit_ts
        await self._writer.finish(start_ts, binlog.SerializeToString())
        self._versions.follow(commit_ts, DdlHistoryJob.from_json(document))


def _cistr(name: str) -> dict[str, str]:
    return {"O": name, "L": name.lower()}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column_info(column: ColumnSpec, number: int) -> dict[str, Any]:
    charset, collate = (_CHARSET, _COLLATE) if column.text else ("binary", "binary")
    return {
        "id": number,
        "name": _cistr(column.name),
        "offset": number - 1,
        "origin_default": column.default,
        "origin_default_bit": None,
        "default": column.default,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "dependences": None,
        "type": {
            "Tp": column.tp,
            "Flag": (0 if column.nullable else FLAG_NOT_NULL | FLAG_NO_DEFAULT)
            | (FLAG_PRIMARY_KEY if column.primary else 0),
            "Flen": column.flen,
            "Decimal": 0,
            "Charset": charset,
            "Collate": collate,
            "Elems": None,
            "ElemsIsBinaryLit": None,
            "Array": False,
        },
        "state": _PUBLIC,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }


def _table_info(table_id: int, name: str, columns: list[ColumnSpec], ts: int) -> dict[str, Any]:
    return {
        "id": table_id,
        "name": _cistr(name),
        "charset": _CHARSET,
        "collate": _COLLATE,
        "cols": [_column_info(column, number) for number, column in enumerate(columns, 1)],
        "index_info": None,
        "constraint_info": None,
        "fk_info": None,
        "state": _PUBLIC,
        "pk_is_handle": True,
        "is_common_handle": False,
        "common_handle_version": 0,
        "comment": "",
        "auto_inc_id": 0,
        "auto_id_cache": 0,
        "auto_rand_id": 0,
        "max_col_id": len(columns),
        "max_idx_id": 0,
        "max_fk_id": 0,
        "max_cst_id": 0,
        "update_timestamp": ts,
        "ShardRowIDBits": 0,
        "max_shard_row_id_bits": 0,
        "auto_random_bits": 0,
        "auto_random_range_bits": 0,
        "pre_split_regions": 0,
        "partition": None,
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
