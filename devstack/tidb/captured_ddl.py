"""Write to the stand-in TiKV what a DDL job leaves there for followers without a binlog.

The transaction of a job's last step puts the job's row into `mysql.tidb_ddl_job`, with state done,
and the definitions that it changed under their meta keys. The next one removes that row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sluice.devstack.tidb.mvcc_records import Change
from sluice.devstack.tidb.sql import Versions
from sluice.devstack.tidb.sql.versioned_rows import Catalog
from sluice.devstack.tidb.store import Store
from sluice.devstack.tidb.stored_values import encode_version_1
from sluice.tidb.codec.datum import COMPACT, VARINT, Datum, encode_datum
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.record_keys import record_key
from sluice.tidb.tikv.meta import hash_field_key

_JOB_TABLE_ID = 0xFFFF_FFFF_FFFF - 1
_RUNNING, _DONE, _SYNCED = 1, 4, 6


class CapturedDDL:
    """Put jobs and definitions into `store`; `versions` has the recording's catalogs."""

    def __init__(self, store: Store, versions: Versions) -> None:
        self._store, self._versions = store, versions
        self._catalog = Catalog({}, {}, {})

    def step(
        self,
        document: Mapping[str, Any],
        schema_state: int,
        start_ts: int,
        commit_ts: int,
        *,
        is_last: bool,
    ) -> None:
        """Commit a step of a job that writes a binlog; the last one changes definitions."""
        state = document["state"] if document["state"] != _SYNCED else _DONE
        job = {**document, "state": state if is_last else _RUNNING, "schema_state": schema_state}
        changes = {_job_key(document["id"]): Change(_job_row(job))}
        if is_last:
            changes |= self._changed_definitions(commit_ts)
        self._store.put_all(changes, start_ts, commit_ts)

    def leave(self, job_id: int, start_ts: int, commit_ts: int) -> None:
        """Remove the row of a job that is in the history now."""
        self._store.put_all({_job_key(job_id): Change(None)}, start_ts, commit_ts)

    def _changed_definitions(self, commit_ts: int) -> dict[bytes, Change]:
        before, after = self._catalog, self._versions.catalog(commit_ts)
        self._catalog = after
        gone = {_table_key(t.schema_id, t.id) for t in before.tables.values()}
        changes: dict[bytes, Change] = {}
        for table_id, table in after.tables.items():
            key = _table_key(table.schema_id, table_id)
            gone.discard(key)
            was = before.tables.get(table_id)
            if was == table and before.infos.get(table_id) is after.infos.get(table_id):
                continue
            name = {"O": table.name, "L": table.name.lower()}
            info = {
                **after.infos[table_id],
                "id": table_id,
                "name": name,
                "partition": table.partition,
            }
            changes[key] = Change(json.dumps(info, ensure_ascii=False).encode())
        for schema_id, schema in after.schemas.items():
            if before.schemas.get(schema_id) != schema:
                database = {
                    "id": schema_id,
                    "db_name": {"O": schema.name, "L": schema.name.lower()},
                    "charset": schema.charset,
                    "collate": schema.collate,
                    "state": 5,
                }
                changes[_database_key(schema_id)] = Change(json.dumps(database).encode())
        for schema_id in before.schemas.keys() - after.schemas.keys():
            changes[_database_key(schema_id)] = Change(None)
        return changes | {key: Change(None) for key in gone}


def _table_key(schema_id: int, table_id: int) -> bytes:
    return hash_field_key(f"DB:{schema_id}", f"Table:{table_id}".encode())


def _database_key(schema_id: int) -> bytes:
    return hash_field_key("DBs", f"DB:{schema_id}".encode())


def _job_key(job_id: int) -> bytes:
    return record_key(_JOB_TABLE_ID, encode_int(job_id))


def _job_row(job: Mapping[str, Any]) -> bytes:
    text = {
        3: str(job["schema_id"]),
        4: str(job["table_id"]),
        5: json.dumps(job, ensure_ascii=False),
    }
    row = {number: encode_datum(Datum(COMPACT, value.encode())) for number, value in text.items()}
    numbers = {2: 0, 6: int(job["type"]), 7: 1}
    row |= {number: encode_datum(Datum(VARINT, value)) for number, value in numbers.items()}
    return encode_version_1(dict(sorted(row.items())))
