"""Measure the rows decoded per second of one core.

The rows are of a recording's tables, and of a made-up table with a column of every type.

usage: python -m sluice.bench.decode_rows [RECORDING] [--rows N] [--batch N] [--kinds]

Every table's rows are repeated to N of each kind, then decoded in batches on one core, best of
three, in CPU time. The recording is a folder with `binlogs.bin.gz` and `tikv-meta.jsonl.gz`;
without one, the table of every type is decoded, its rows random and all different. `--kinds` also
decodes tables that have a key and one column of each type, to show which types cost most.
"""

import argparse
import pathlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from sluice.tidb import column_types
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.rows import (
    DecodeStats,
    decode_deletes,
    decode_inserts,
    decode_updates,
    encode_delete,
    encode_insert,
    encode_update,
)
from sluice.tidb.schema import Column, Table

_DECODERS = {"insert": decode_inserts, "update": decode_updates, "delete": decode_deletes}
_TEXT = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
_BINARY = {"charset": "binary", "collate": "binary"}
_WORDS = ("alpha", "beta", "gamma", "delta", "épsilon", "zêta", "eta", "theta")
_KEY = Column(1, "id", 0, 8, 3)
# name: what `Column` needs beyond id, name and offset.
_TYPES: dict[str, dict[str, Any]] = {
    "tinyint": {"tp": column_types.TINYINT},
    "smallint": {"tp": column_types.SMALLINT},
    "mediumint": {"tp": column_types.MEDIUMINT},
    "int": {"tp": column_types.INT},
    "bigint_unsigned": {"tp": column_types.BIGINT, "flag": column_types.FLAG_UNSIGNED},
    "float": {"tp": column_types.FLOAT},
    "double": {"tp": column_types.DOUBLE},
    "decimal": {"tp": column_types.DECIMAL, "flen": 12, "decimal": 2},
    "date": {"tp": column_types.DATE},
    "datetime": {"tp": column_types.DATETIME},
    "timestamp": {"tp": column_types.TIMESTAMP, "decimal": 6},
    "time": {"tp": column_types.TIME, "decimal": 3},
    "year": {"tp": column_types.YEAR},
    "bit": {"tp": column_types.BIT, "flen": 17},
    "char": {"tp": column_types.CHAR, "flen": 20, **_TEXT},
    "varchar": {"tp": column_types.VARCHAR, "flen": 40, **_TEXT},
    "binary": {"tp": column_types.CHAR, "flen": 4, **_BINARY},
    "varbinary": {"tp": column_types.VARCHAR, "flen": 20, **_BINARY},
    "text": {"tp": column_types.TEXT, **_TEXT},
    "blob": {"tp": column_types.TEXT, **_BINARY},
    "enum": {"tp": column_types.ENUM, "elems": _WORDS, **_TEXT},
    "set": {"tp": column_types.SET, "elems": _WORDS, **_TEXT},
    "json": {"tp": column_types.JSON},
}


def _value(name: str, rng: random.Random) -> Any:
    """Return a short value of a type."""
    day = f"20{rng.randint(0, 37):02}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
    match name:
        case "tinyint":
            return rng.randint(-128, 127)
        case "smallint" | "mediumint" | "int":
            return rng.randint(-32768, 32767)
        case "bigint_unsigned":
            return rng.getrandbits(64)
        case "float" | "double":
            return rng.randint(-1000, 1000) / 8
        case "decimal":
            return f"{rng.randint(-10_000_000, 10_000_000)}.{rng.randint(0, 99):02}"
        case "date":
            return day
        case "datetime":
            return f"{day} {clock}"
        case "timestamp":
            return f"{day} {clock}.{rng.randint(0, 999_999):06}"
        case "time":
            return f"{clock}.{rng.randint(0, 999):03}"
        case "year":
            return rng.randint(1970, 2037)
        case "bit":
            return rng.getrandbits(17)
        case "binary" | "varbinary" | "blob":
            return rng.randbytes(4 if name == "binary" else rng.randint(0, 12))
        case "enum":
            return rng.choice(_WORDS)
        case "set":
            return ",".join(word for word in _WORDS if rng.random() < 0.3)
        case "json":
            return f'{{"id": {rng.randint(0, 10**6)}, "name": "{rng.choice(_WORDS)}"}}'
    return " ".join(rng.choices(_WORDS, k=rng.randint(1, 3)))[:20]


def table_of(*names: str) -> Table:
    """Return a table with an integer key and a column of each of these types."""
    columns = [Column(n, f"c_{name}", n - 1, **_TYPES[name]) for n, name in enumerate(names, 2)]
    return Table(
        1,
        1,
        "bench",
        names[0] if len(names) == 1 else "every_type",
        (_KEY, *columns),
        pk_is_handle=True,
    )


def rows_of(table: Table, count: int) -> dict[str, list[bytes]]:
    """Yield `count` random inserts, updates and deletes."""
    rng = random.Random(1)

    def row(key: int) -> dict[str, Any]:
        return {"id": key} | {
            c.name: None if rng.random() < 0.05 else _value(c.name[2:], rng)
            for c in table.columns[1:]
        }

    rows = [row(n) for n in range(count)]
    return {
        "insert": [encode_insert(table, r) for r in rows],
        "update": [encode_update(table, r, r | {"c_int": 7} if "c_int" in r else r) for r in rows],
        "delete": [encode_delete(table, r) for r in rows],
    }


def of_every_type(count: int, *, apart: bool) -> Iterator[tuple[Table, str, list[bytes]]]:
    """Yield (table, kind of change, rows) of the made-up tables."""
    tables = [table_of(*_TYPES)] + ([table_of(name) for name in _TYPES] if apart else [])
    for number, table in enumerate(tables):
        for what, rows in rows_of(table, count).items():
            if number == 0 or what == "insert":
                yield table, what, rows


def of_recording(folder: pathlib.Path) -> Iterator[tuple[Table, str, list[bytes]]]:
    """Return the same of a recording."""
    from tests.tidb import recorded

    history = SchemaHistory.from_jobs(
        DdlHistoryJob.from_json(j) for j in recorded.meta(folder.name, folder.parent)[0].values()
    )
    found: dict[tuple[int, str], list[bytes]] = {}
    for message in recorded.transactions(folder.name, folder.parent):
        for mutation in recorded.value_of(message).mutations if message.prewrite_value else ():
            for what, rows in zip(
                _DECODERS,
                (mutation.inserted_rows, mutation.updated_rows, mutation.deleted_rows),
                strict=True,
            ):
                if rows:
                    found.setdefault((mutation.table_id, what), []).extend(rows)
    for (table_id, what), rows in sorted(found.items()):
        table = history.table(table_id)
        if table is not None:
            yield table, what, rows


def main() -> None:
    """Measure the decoding of the rows of a recording, or of invented ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recording", type=pathlib.Path, nargs="?")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--tables", nargs="*", help="only these, as schema.table")
    parser.add_argument("--kinds", action="store_true", help="each type by itself, too")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    source = (
        of_recording(args.recording.resolve())
        if args.recording
        else of_every_type(min(args.rows, 20_000), apart=args.kinds)
    )
    print(f"{'table':32} {'kind':7} {'rows/CPU s':>12} {'bytes/row':>10} fallback")
    for table, what, rows in source:
        if args.tables and table.full_name not in args.tables:
            continue
        many = (rows * (args.rows // len(rows) + 1))[: args.rows]
        batches = [
            pa.array(many[i : i + args.batch], pa.large_binary())
            for i in range(0, len(many), args.batch)
        ]
        best, stats = float("inf"), DecodeStats()
        for _ in range(3):
            stats = DecodeStats()
            begin = time.process_time()
            for batch in batches:
                _DECODERS[what](table, batch, stats)
            best = min(best, time.process_time() - begin)
        size = sum(map(len, many)) // len(many)
        print(
            f"{table.full_name:32} {what:7} {len(many) / best:12,.0f} {size:10}"
            f" {stats.fallback / stats.rows:.1%}"
        )


if __name__ == "__main__":
    main()
