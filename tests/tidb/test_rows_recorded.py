"""Batch decoding on what a real TiDB wrote: equal to the row-by-row reference, and right by the
recorded snapshots.
"""

import collections
import gzip
import json
import struct
import urllib.parse
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluice.tidb.codec import row as reference
from sluice.tidb.codec.float import format_float
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.rows import (
    ROWID_NAME,
    DecodeStats,
    decode_deletes,
    decode_inserts,
    decode_updates,
    encode_delete,
    encode_insert,
    encode_update,
)
from sluice.tidb.schema import Table
from tests.tidb import recorded

Group = dict[tuple[int, int, str], tuple[Table, list[bytes]]]


def walk(name: str) -> Any:
    """(message, mutation, table) with the schema as of each change, as a consumer meets them."""
    jobs = {i: DdlHistoryJob.from_json(j) for i, j in recorded.meta(name)[0].items()}
    history = SchemaHistory()
    for message in recorded.transactions(name):
        if message.ddl_job_id:
            if message.ddl_job_id in jobs:
                history.apply(
                    DdlHistoryJob.from_json(
                        recorded.meta(name)[0][message.ddl_job_id], message.ddl_schema_state
                    )
                )
            continue
        for mutation in recorded.value_of(message).mutations:
            table = history.table(mutation.table_id)
            if table is None:
                assert mutation.table_id in history.truncated, mutation.table_id
                continue
            yield message, mutation, table


def groups(name: str) -> Group:
    """All rows of a recording by table version and kind."""
    found: Group = {}
    for _, mutation, table in walk(name):
        for what, rows in (
            ("insert", mutation.inserted_rows),
            ("update", mutation.updated_rows),
            ("delete", mutation.deleted_rows),
        ):
            if rows:
                found.setdefault((table.id, hash(table), what), (table, []))[1].extend(rows)
    return found


def text(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def plain(batch: pa.RecordBatch) -> list[list[Any]]:
    columns = [
        c.cast(pa.large_binary()) if c.type == pa.large_string() else c for c in batch.columns
    ]
    return (
        [list(row) for row in zip(*(c.to_pylist() for c in columns), strict=True)]
        if columns
        else []
    )


@pytest.mark.quick_cases("types", "ddl", "edges", "oldcoll")
@pytest.mark.parametrize("name", ["types", "ddl", "orphans", "shop"])
def test_batches_decode_as_single_rows_do_and_without_fallback(name: str) -> None:
    stats, seen = DecodeStats(), 0
    for (_, _, what), (table, raw) in groups(name).items():
        rows = pa.array(raw, pa.large_binary())
        if what == "update":
            want = [reference.decode_update(table, r) for r in raw]
            old, new = decode_updates(table, rows, stats, small_batch=0)
            assert plain(old) == [[text(v) for v in o] for o, _ in want]
            assert plain(new) == [[text(v) for v in n] for _, n in want]
        else:
            decode, one = (
                (decode_inserts, reference.decode_insert)
                if what == "insert"
                else (decode_deletes, reference.decode_delete)
            )
            batch = decode(table, rows, stats, small_batch=0)
            batch.validate(full=True)
            assert plain(batch) == [[text(v) for v in one(table, r)] for r in raw]
        seen += len(raw)
    assert stats.rows == seen > 100
    assert stats.fallback == 0


@pytest.mark.parametrize("name", ["types", "ddl", "shop"])
def test_encoding_decoded_rows_gives_rows_that_decode_alike(name: str) -> None:
    for (_, _, what), (table, raw) in groups(name).items():
        names = [c.name for c in table.stored_columns] + [ROWID_NAME]

        def named(values: list[Any], names: list[str] = names) -> dict[str, Any]:
            return dict(zip(names, values, strict=False))

        for data in raw[:20]:
            if what == "insert":
                values = reference.decode_insert(table, data)
                assert reference.decode_insert(table, encode_insert(table, named(values))) == values
            elif what == "delete":
                values = reference.decode_delete(table, data)
                assert reference.decode_delete(table, encode_delete(table, named(values))) == values
            else:
                old, new = reference.decode_update(table, data)
                assert reference.decode_update(
                    table, encode_update(table, named(old), named(new))
                ) == (old, new)


def canonical(value: Any, kind: str) -> Any:
    """Values by meaning: decimals as numbers, FLOAT as float32, JSON as documents, anything else
    byte for byte.
    """
    if value is None:
        return None
    if isinstance(value, dict):
        value = bytes.fromhex(value["hex"])
    if kind == "decimal":
        return Decimal(str(value)).normalize() + 0
    if kind == "float":  # the snapshot's text has 6 digits for the largest and smallest values
        return struct.pack(
            "<f", float(value if isinstance(value, str) else format_float(value)) + 0.0
        )
    if kind == "double":
        return struct.pack("<d", float(value) + 0.0)
    if kind == "json":
        return json.dumps(json.loads(value), sort_keys=True, ensure_ascii=False)
    if kind == "bit":
        return (value if isinstance(value, bytes) else value.to_bytes(8, "big")).lstrip(b"\0")
    if kind == "year":
        return int(value)
    return value if isinstance(value, bytes) else str(value).encode()


def snapshot(name: str, label: str) -> dict[str, tuple[list[str], list[list[Any]]]]:
    folder = recorded.FOLDER / name / "snapshots" / label
    found = {}
    for path in folder.glob("*.jsonl*"):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf8") as lines:
            columns = json.loads(next(lines))["columns"]
            full = urllib.parse.unquote(path.name.removesuffix(".gz").removesuffix(".jsonl"))
            found[full] = (columns, [json.loads(line) for line in lines])
    return found


def replay_types() -> tuple[dict[int, Table], dict[int, dict[Any, dict[str, Any]]]]:
    """The rows of `types` by table id and key after all transactions, through the batch decoder."""
    tables: dict[int, Table] = {}
    state: dict[int, dict[Any, dict[str, Any]]] = collections.defaultdict(dict)
    for message, mutation, table in walk("types"):
        tables[table.id] = table
        key = table.primary_key if table.handle_kind != "heap" else (ROWID_NAME,)
        inserts, updates, deletes = (
            pa.array(list(r), pa.large_binary())
            for r in (mutation.inserted_rows, mutation.updated_rows, mutation.deleted_rows)
        )
        added = iter(decode_inserts(table, inserts, small_batch=0).to_pylist())
        old, new = decode_updates(table, updates, small_batch=0)
        changed = iter(zip(old.to_pylist(), new.to_pylist(), strict=True))
        removed = iter(decode_deletes(table, deletes, small_batch=0).to_pylist())
        rows = state[table.id]

        def identity(row: dict[str, Any], key: tuple[str, ...] = key) -> Any:
            return tuple(row[k] for k in key)

        for kind in mutation.sequence:
            where = (table.full_name, message.commit_ts)
            if kind == 0:
                row = next(added)
                assert identity(row) not in rows, where
                rows[identity(row)] = row
            elif kind == 1:
                before, after = next(changed)
                assert rows.pop(identity(before)) == before, where
                rows[identity(after)] = after
            else:
                row = next(removed)
                assert rows.pop(identity(row)) == row, where
        assert all(next(i, None) is None for i in (added, changed, removed))
    return tables, state


def test_replaying_every_type_and_key_gives_the_recorded_snapshot() -> None:
    tables, state = replay_types()
    by_name = {t.full_name: t for t in tables.values()}
    wanted = snapshot("types", "end")
    assert len(wanted) > 30
    for full, (columns, want_rows) in wanted.items():
        table = by_name[full]
        kinds = {c.name: c.kind for c in table.stored_columns}
        stored = [(i, name) for i, name in enumerate(columns) if name in kinds]
        assert {c.name for c in table.stored_columns} == {name for _, name in stored}
        virtual = {c.name for c in table.columns if c.virtual and not c.hidden}
        assert set(columns) - set(kinds) == virtual
        got = collections.Counter(
            tuple(canonical(row[name], kinds[name]) for _, name in stored)
            for row in state[table.id].values()
        )
        want = collections.Counter(
            tuple(canonical(row[i], kinds[name]) for i, name in stored) for row in want_rows
        )
        assert got == want, full
