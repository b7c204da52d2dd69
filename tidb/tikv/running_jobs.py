"""DDL jobs that TiDB is carrying out, from the rows of `mysql.tidb_ddl_job`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sluice.tidb.schema import SchemaError
from sluice.tidb.tikv.client import TiKVClient
from sluice.tidb.tikv.meta import find_table_info

_SIGN = 1 << 63
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
