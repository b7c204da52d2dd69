"""TiDB's meta keys in the stand-in TiKV: the DDL job history and the schema version, as they grow.

A key is `m{key}{type}[{field}]`: `m`, the memcomparable key, u64 of the type's letter (s string,
h hash field), for a hash field its memcomparable name.

    DDLJobHistory, h, u64 job id   the job's JSON, written by the transaction after the one that
                                   wrote the job's binlog
    SchemaVersionKey, s            the newest schema version in decimal digits
    Diff:<version>, s              what that version changed
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.devstack.recording import Recording, RecordingError, Transaction
from sluice.devstack.tidb.store import Store
from sluice.tidb.tikv.meta import hash_field_key, hash_prefix, history_job_key, string_key

# Version of keys that were there before the recording begins.
_BEGINNING = 1


HISTORY_PREFIX = hash_prefix("DDLJobHistory")
SCHEMA_VERSION_KEY = string_key("SchemaVersionKey")


@dataclass(frozen=True, slots=True)
class _Job:
    id: int
    schema_version: int
    finished_ts: int
    document: bytes


class JobFollower(Protocol):
    """Write what a job leaves in TiKV beside its history, see `captured_ddl`."""

    def step(
        self,
        document: Mapping[str, Any],
        schema_state: int,
        start_ts: int,
        commit_ts: int,
        *,
        is_last: bool,
    ) -> None: ...

    def leave(self, job_id: int, start_ts: int, commit_ts: int) -> None: ...


class DDLHistory:
    """Put meta keys into the store as the transactions that finish DDL jobs commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.captured: JobFollower | None = None
        """Set where followers read TiKV in place of binlogs, before a recording is played."""
        self._jobs: dict[int, _Job] = {}
        self._diffs: dict[int, bytes] = {}
        self._schema_version = 0
        self._finishing: dict[int, int] = {}
        self._tables: dict[bytes, bytes] = {}
        """TableInfo by key, as it is at the recording's end, of tables that jobs made."""
        self.next_id = 100

    @property
    def schema_version(self) -> int:
        """Return the newest schema version that is committed."""
        return self._schema_version

    @property
    def job_ids(self) -> list[int]:
        """Return ids of the recorded jobs, ascending."""
        return sorted(self._jobs)

    def load(self, recording: Recording) -> None:
        """Take a recording's keys; jobs wait for their transaction.

        Jobs that wrote no binlog and all other keys are there from the start.
        """
        version_prefix = string_key("Diff:")[:6]
        newest_id = string_key("NextGlobalID")
        for key, value in recording.meta_keys():
            if key.startswith(HISTORY_PREFIX):
                job = _parse_job(value, recording)
                self._jobs[job.id] = job
            elif b"Table:" in key and value[:1] == b"{":
                self._tables[key] = value
            elif key.startswith(version_prefix):
                self._diffs[int(json.loads(value)["version"])] = value
            elif key != SCHEMA_VERSION_KEY:
                self._store.put(key, value, _BEGINNING)
            if key == newest_id:
                self.next_id = int(value) + 1
        for txn in recording.transactions().values():
            if txn.ddl_job_id in self._jobs and txn.commit_ts:
                known = self._finishing.get(txn.ddl_job_id, 0)
                self._finishing[txn.ddl_job_id] = max(known, txn.commit_ts)
        made = {key for job_id in self._finishing for key in _table_infos(self._jobs[job_id])}
        for key in self._tables.keys() - made:
            self._store.put(key, self._tables[key], _BEGINNING)
        for job in self._jobs.values():
            if job.id not in self._finishing:
                self._publish(job, job.finished_ts)

    def cut(self, until_ts: int) -> None:
        """End the history at `until_ts`: take back jobs without a binlog that finished later."""
        late = [
            job
            for job in self._jobs.values()
            if job.id not in self._finishing and job.finished_ts > until_ts
        ]
        for job in late:
            self._store.remove(history_job_key(job.id))
        if late:
            self._store.remove(SCHEMA_VERSION_KEY)
            self._schema_version = 0
            for job in self._jobs.values():
                if job.id not in self._finishing and job not in late:
                    self._publish(job, job.finished_ts)

    def committed(self, txn: Transaction) -> None:
        """Note that the transaction committed.

        If it finished a DDL job, the job and its schema version appear.
        """
        if not txn.ddl_job_id:
            return
        is_last = self._finishing.get(txn.ddl_job_id) == txn.commit_ts
        if self.captured is not None and txn.ddl_job_id in self._jobs:
            document = json.loads(self._jobs[txn.ddl_job_id].document)
            state = txn.ddl_schema_state
            self.captured.step(document, state, txn.start_ts, txn.commit_ts, is_last=is_last)
        if is_last:
            self._publish(self._jobs[txn.ddl_job_id], txn.commit_ts, txn.start_ts)

    def add(self, document: dict[str, Any], commit_ts: int, start_ts: int = 0) -> None:
        """Add a job that TiDB finished now, its binlog committed at `commit_ts`.

        FinishedTS must be set in it.
        """
        if self.captured is not None:
            state = document["schema_state"]
            self.captured.step(document, state, start_ts, commit_ts, is_last=True)
        binlog = document["binlog"]
        diff = {
            "version": binlog["SchemaVersion"],
            "schema_id": document["schema_id"],
            "table_id": document["table_id"],
        }
        self._diffs[binlog["SchemaVersion"]] = json.dumps(
            {**diff, "type": document["type"]}
        ).encode()
        self._publish(
            _Job(
                document["id"],
                binlog["SchemaVersion"],
                binlog["FinishedTS"],
                json.dumps(document).encode(),
            ),
            commit_ts,
            start_ts,
        )

    def allocate_id(self) -> int:
        """Return a global id (of a schema, table or job), never used before."""
        self.next_id += 1
        return self.next_id - 1

    def _publish(self, job: _Job, commit_ts: int, start_ts: int = 0) -> None:
        # FinishedTS is the start of the transaction that writes the history entry.
        in_history_ts = max(job.finished_ts, commit_ts)
        self._store.put(history_job_key(job.id), job.document, in_history_ts + 1, in_history_ts)
        if self.captured is not None:
            self.captured.leave(job.id, in_history_ts, in_history_ts + 1)
        diff = self._diffs.get(job.schema_version)
        # another job of a higher version was first
        if diff is not None and job.schema_version <= self._schema_version:
            self._store.put(string_key(f"Diff:{job.schema_version}"), diff, commit_ts, start_ts)
        for key, info in _table_infos(job).items():
            is_left = (
                job.id in self._finishing and key in self._tables
            )  # else it is gone in the end
            if is_left and self.captured is None:
                self._store.put(key, info, commit_ts)
        if job.schema_version > self._schema_version:
            for version in range(self._schema_version + 1, job.schema_version + 1):
                if version in self._diffs:
                    diff_key = string_key(f"Diff:{version}")
                    self._store.put(diff_key, self._diffs[version], commit_ts, start_ts)
            self._schema_version = job.schema_version
            version_text = str(job.schema_version).encode()
            self._store.put(SCHEMA_VERSION_KEY, version_text, commit_ts, start_ts)

    def splits(self) -> list[bytes]:
        """Return where to cut the key space.

        In the middle of the job history, and between meta keys and tables.
        """
        ids = self.job_ids
        middle: Iterable[bytes] = [history_job_key(ids[len(ids) // 2])] if ids else [HISTORY_PREFIX]
        return [*middle, b"t"]


def _table_infos(job: _Job) -> dict[bytes, bytes]:
    """Return the TableInfos that a job leaves behind, by key."""
    document = json.loads(job.document)
    # there from the beginning
    if not job.schema_version or str(document.get("schema_name")).lower() == "mysql":
        return {}
    binlog = document["binlog"]
    infos = [
        info
        for info in (binlog.get("TableInfo"), *(binlog.get("MultipleTableInfos") or ()))
        if info
    ]
    keys = (
        hash_field_key(f"DB:{document['schema_id']}", f"Table:{info['id']}".encode())
        for info in infos
    )
    return {
        key: json.dumps(info, ensure_ascii=False).encode()
        for key, info in zip(keys, infos, strict=True)
    }


def _parse_job(value: bytes, recording: Recording) -> _Job:
    try:
        document = json.loads(value)
        binlog = document.get("binlog") or {}
        return _Job(
            int(document["id"]),
            int(binlog.get("SchemaVersion") or 0),
            int(binlog.get("FinishedTS") or 0),
            value,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(
            f"{recording.directory / 'tikv-meta.jsonl.gz'}: a DDL job that is no job ({error});"
            " copy the recording again"
        ) from error
