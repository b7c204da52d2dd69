"""TiDB's schema keys in TiKV, and the DDL jobs behind them.

`M(name, kind) = 'm' ++ memcomparable(name) ++ u64(kind)` with kind 's' string, 'h' hash field, 'H'
hash, 'l' list item, 'L' list. Hash fields and list indexes follow it. The job history is the hash
`DDLJobHistory`, field u64(job id).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.memcomparable import decode_bytes, decode_uint, encode_bytes
from sluice.tidb.schema import SchemaError, parse_object
from sluice.tidb.tikv.client import TiKVClient

_HISTORY = "DDLJobHistory"
_MAX_SINGLE_READS = 64
"""Above this number of jobs they are scanned for, from the first wanted one on."""
_JOBS_PER_SCAN = 64
"""A job of a table with a thousand columns is 600 KB."""
_KEYS_PER_SCAN = 1024


def string_key(name: str) -> bytes:
    """Return the key of a string, as SchemaVersionKey or `Diff:<version>`."""
    return _key(name, "s")


def hash_prefix(name: str) -> bytes:
    """Return the first bytes of all fields of a hash."""
    return _key(name, "h")


def hash_end(name: str) -> bytes:
    """Return the first key after all fields of a hash."""
    return _key(name, chr(ord("h") + 1))


def hash_field_key(name: str, field: bytes) -> bytes:
    """Return the key of one field of a hash, as field `Table:42` of hash `DB:130`."""
    return hash_prefix(name) + encode_bytes(field)


def split_key(key: bytes) -> tuple[bytes, str, bytes] | None:
    """Return name, kind and the rest of one of these keys (a hash's field decoded).

    None for another key.
    """
    if key[:1] != b"m":
        return None
    try:
        name, at = decode_bytes(key, 1)
        kind, at = decode_uint(key, at)
        rest = decode_bytes(key, at)[0] if kind == ord("h") else key[at:]
    except CodecError:
        return None
    return name, chr(kind & 0xFF), rest


def read_definitions(tikv: TiKVClient, ts: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each database's DBInfo, then of each TableInfo, as of a TSO."""
    names = []
    for key, value in tikv.scan(hash_prefix("DBs"), hash_end("DBs"), ts, _KEYS_PER_SCAN):
        found = split_key(key)
        if found is not None and found[2].startswith(b"DB:"):
            names.append(found[2].decode())
            yield key, value
    for name in names:
        yield from tikv.scan(
            hash_prefix(name) + b"Table:", hash_prefix(name) + b"Table;", ts, _JOBS_PER_SCAN
        )


def history_job_key(job_id: int) -> bytes:
    """Return the key of a finished DDL job."""
    return hash_field_key(_HISTORY, job_id.to_bytes(8, "big"))


def read_ddl_job(tikv: TiKVClient, job_id: int, ts: int) -> dict[str, Any] | None:
    """Return a finished DDL job (TiDB's job JSON) as of a TSO.

    None: not (yet) in the history.

    TiDB puts a job there one transaction after the one with the binlog that names it: retry with a
    later TSO.
    """
    value = tikv.get(history_job_key(job_id), ts)
    return None if value is None else _job(value, job_id)


def read_ddl_jobs(tikv: TiKVClient, ts: int) -> Iterator[dict[str, Any]]:
    """Yield all finished DDL jobs as of a TSO, by ascending job id."""
    for job_id, value in read_raw_ddl_jobs(tikv, ts):
        yield _job(value, job_id)


def read_raw_ddl_jobs(
    tikv: TiKVClient, ts: int, known: Collection[int] = frozenset()
) -> Iterator[tuple[int, bytes]]:
    """Yield the id and TiDB's JSON of each finished DDL job as of a TSO, by ascending id.

    The `known` ones are left out by their keys: a history of 100,000 jobs is a gigabyte, its keys 3
    MB.
    """
    wanted = [job_id for job_id in _ddl_job_ids(tikv, ts) if job_id not in known] if known else None
    if wanted is not None and len(wanted) <= _MAX_SINGLE_READS:
        found = ((job_id, tikv.get(history_job_key(job_id), ts)) for job_id in wanted)
        yield from ((job_id, value) for job_id, value in found if value is not None)
        return
    start = history_job_key(wanted[0]) if wanted else hash_prefix(_HISTORY)
    for key, value in tikv.scan(start, hash_end(_HISTORY), ts, _JOBS_PER_SCAN):
        if (job_id := _job_id(key)) not in known:
            yield job_id, value


def read_last_ddl_jobs(tikv: TiKVClient, ts: int) -> Iterator[dict[str, Any]]:
    """Yield all finished DDL jobs as of a TSO, by descending job id; each is read by itself."""
    for job_id in reversed(list(_ddl_job_ids(tikv, ts))):
        job = read_ddl_job(tikv, job_id, ts)
        if job is not None:
            yield job


def _ddl_job_ids(tikv: TiKVClient, ts: int) -> Iterator[int]:
    for key, _ in tikv.scan(
        hash_prefix(_HISTORY), hash_end(_HISTORY), ts, _KEYS_PER_SCAN, keys_only=True
    ):
        yield _job_id(key)


def _job_id(key: bytes) -> int:
    start = len(hash_prefix(_HISTORY))
    return int.from_bytes(key[start : start + 8], "big")


def read_schema_version(tikv: TiKVClient, ts: int) -> int:
    """Return TiDB's schema version as of a TSO; 0 before the first DDL."""
    return _version(tikv.get(_VERSION_KEY, ts))


def begin_schema_version(tikv: TiKVClient, ts: int) -> Callable[[], int] | None:
    """Begin to read the schema version, see `TiKVClient.begin_get`.

    Returns the function that returns it, and raises TiKVError.
    """
    pending = tikv.begin_get(_VERSION_KEY, ts)
    return None if pending is None else lambda: _version(pending.result())


def _version(value: bytes | None) -> int:
    return int(value) if value else 0


def read_schema_diff(tikv: TiKVClient, version: int, ts: int) -> dict[str, Any] | None:
    """Return the changes of a schema version, as of a TSO; None without such a version.

    They are {"type" (of the job), "schema_id", "table_id" ...}.
    """
    value = tikv.get(string_key(f"Diff:{version}"), ts)
    return None if not value else parse_object(value, f"schema version {version}'s diff")


def table_key(schema_id: int, table_id: int) -> bytes:
    """Return the key of a table's TableInfo."""
    return hash_field_key(f"DB:{schema_id}", f"Table:{table_id}".encode())


def read_table_info(
    tikv: TiKVClient, schema_id: int, table_id: int, ts: int
) -> dict[str, Any] | None:
    """Return a table's TableInfo (TiDB's JSON) as of a TSO, in any state of a schema change.

    None without such a table.
    """
    value = tikv.get(table_key(schema_id, table_id), ts)
    return None if not value else parse_object(value, f"table {table_id}")


def find_table_info(tikv: TiKVClient, schema: str, table: str, ts: int) -> dict[str, Any] | None:
    """Return the TableInfo of a table by its name, in lower case, as of a TSO.

    None without such a table.
    """
    for schema_info in _objects(tikv, "DBs", schema, ts):
        if schema_info["db_name"]["L"] == schema:
            for info in _objects(tikv, f"DB:{schema_info['id']}", table, ts):
                if info["name"]["L"] == table:
                    return info
    return None


def find_table_by_id(
    tikv: TiKVClient, table_id: int, ts: int
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the DBInfo and TableInfo of a table as of a TSO, in whatever database.

    None without such a table.
    """
    for schema_info in _objects(tikv, "DBs", "", ts):
        info = read_table_info(tikv, int(schema_info["id"]), table_id, ts)
        if info is not None:
            return schema_info, info
    return None


def _objects(tikv: TiKVClient, name: str, containing: str, ts: int) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a hash with a text in them.

    Hashes of TiDB's schema hold counters too, in decimal digits.
    """
    for key, value in tikv.scan(hash_prefix(name), hash_end(name), ts):
        if value[:1] == b"{" and containing.encode() in value:
            yield parse_object(value, f"key {key.hex()}")


def _key(name: str, kind: str) -> bytes:
    return b"m" + encode_bytes(name.encode()) + ord(kind).to_bytes(8, "big")


_VERSION_KEY = string_key("SchemaVersionKey")


def _job(value: bytes, what: object) -> dict[str, Any]:
    return parse_object(value, f"DDL job {what}")


_VARIABLE = b"new_collation_enabled"
_SIGN = 1 << 63


def read_new_collations(tikv: TiKVClient, table_id: int, ts: int) -> bool | None:
    """Return whether the cluster has new collations, from the rows of `mysql.tidb` as of a TSO.

    None if the table is empty, as no cluster's is. Raises TiKVError. Rows lie at ``t<table
    id>_r<handle>``; their values hold texts as they are.
    """
    prefix = b"t" + ((table_id + _SIGN) % 2**64).to_bytes(8, "big") + b"_r"
    known = None
    for key, value in tikv.scan(prefix, prefix + b"\xff", ts):
        known = False if known is None else known
        if _VARIABLE in value or _handle_text(key[len(prefix) :]) == _VARIABLE:
            return b"True" in value
    return known


def _handle_text(handle: bytes) -> bytes:
    """Return the text of a clustered key; b"" for a number."""
    if handle[:1] != b"\x01":
        return b""
    try:
        return decode_bytes(handle, 1)[0]
    except CodecError:
        return b""


_BEGIN = b'{"id":'
"""The first bytes of TiDB's JSON of a job."""


def read_running_jobs(tikv: TiKVClient, ts: int) -> Iterator[dict[str, Any]]:
    """Yield TiDB's JSON of each job that waits or runs as of a TSO.

    TiDB before 6.2 has no such table. Raises TiKVError, and SchemaError for a row that isn't a job.
    """
    table = find_table_info(tikv, "mysql", "tidb_ddl_job", ts)
    if table is None:
        return
    prefix = b"t" + ((int(table["id"]) + _SIGN) % 2**64).to_bytes(8, "big") + b"_r"
    for key, value in tikv.scan(prefix, prefix + b"\xff", ts):
        yield job_of_row(key, value)


def job_of_row(key: bytes, row: bytes) -> dict[str, Any]:
    """Return TiDB's JSON of the job in a row of the table.

    Raises SchemaError for a row that isn't a job.
    """
    at = row.find(_BEGIN)
    try:
        found = (
            json.JSONDecoder().raw_decode(row[at:].decode("utf-8", "replace"))[0]
            if at >= 0
            else None
        )
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SchemaError(f"row {key.hex()} of mysql.tidb_ddl_job holds no DDL job")
    return found
