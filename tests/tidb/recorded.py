"""The recordings under tests/recordings, for the tests of this folder: jobs and schemas as TiDB
stored them, and the committed transactions in commit order.
"""

import gzip
import json
import pathlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from sluice.tidb import pb
from sluice.tidb.codec import decode_bytes, decode_uint
from sluice.tidb.codec.varint import decode_uvarint

FOLDER = pathlib.Path(__file__).parent.parent / "recordings"

Meta = tuple[dict[int, Any], dict[int, Any], dict[tuple[int, int], Any]]


@cache
def meta(name: str, folder: pathlib.Path = FOLDER) -> Meta:
    """`(jobs by id, DBInfo by id, TableInfo by (schema id, table id))` as JSON objects."""
    jobs: dict[int, Any] = {}
    schemas: dict[int, Any] = {}
    tables: dict[tuple[int, int], Any] = {}
    with gzip.open(folder / name / "tikv-meta.jsonl.gz", "rt") as lines:
        for line in lines:
            if not line.startswith("{"):
                continue
            pair = json.loads(line)
            key, value = bytes.fromhex(pair["key"]), bytes.fromhex(pair["value"])
            what, pos = decode_bytes(key, 1)
            kind, pos = decode_uint(key, pos)
            if kind != ord("h"):
                continue
            field, _ = decode_bytes(key, pos)
            if what == b"DDLJobHistory":
                jobs[int.from_bytes(field, "big")] = json.loads(value)
            elif what == b"DBs":
                schemas[int(field[3:])] = json.loads(value)
            elif what.startswith(b"DB:") and field.startswith(b"Table:"):
                tables[int(what[3:]), int(field[6:])] = json.loads(value)
    return jobs, schemas, tables


def binlogs(name: str, folder: pathlib.Path = FOLDER) -> Iterator[Any]:
    """Every binlog.Binlog message in arrival order."""
    data, pos = gzip.decompress((folder / name / "binlogs.bin.gz").read_bytes()), 0
    while pos < len(data):
        size, pos = decode_uvarint(data, pos)
        yield pb.binlog.Binlog.FromString(data[pos : pos + size])
        pos += size


def transactions(name: str, folder: pathlib.Path = FOLDER) -> list[Any]:
    """The Prewrite messages of committed transactions in commit order, commit_ts filled in."""
    prewritten, committed = {}, []
    for message in binlogs(name, folder):
        if message.tp == 0:
            prewritten[message.start_ts] = message
        elif message.tp == 1 and message.start_ts in prewritten:
            first = prewritten.pop(message.start_ts)
            first.commit_ts = message.commit_ts
            committed.append(first)
    return sorted(committed, key=lambda m: m.commit_ts)


def value_of(message: Any) -> Any:
    """The PrewriteValue of a transaction, empty for DDL."""
    return pb.binlog.PrewriteValue.FromString(message.prewrite_value)
