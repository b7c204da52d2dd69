"""Rows decoded per second and core, of a recording's busiest tables.

usage: python bench/decode_rows.py RECORDING [--rows N] [--batch N]

Every table's rows are repeated to N of each kind, then decoded in batches on one core, best of three. The recording is a
folder with `binlogs.bin.gz` and `tikv-meta.jsonl.gz`.
"""

import argparse
import pathlib
import sys
import time

import pyarrow as pa

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "upstream"))

import recorded

from upstream.history import Job, SchemaHistory
from upstream.rows import DecodeStats, decode_deletes, decode_inserts, decode_updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--tables", nargs="*")
    args = parser.parse_args()
    folder, name = args.recording.resolve().parent, args.recording.resolve().name
    pa.set_cpu_count(1)
    history = SchemaHistory.from_jobs(Job.from_json(j) for j in recorded.meta(name, folder)[0].values())
    found: dict[tuple[int, str], list[bytes]] = {}
    for message in recorded.transactions(name, folder):
        for mutation in recorded.value_of(message).mutations if message.prewrite_value else ():
            for what, rows in (
                ("insert", mutation.inserted_rows),
                ("update", mutation.updated_rows),
                ("delete", mutation.deleted_rows),
            ):
                if rows:
                    found.setdefault((mutation.table_id, what), []).extend(rows)
    decoders = {"insert": decode_inserts, "update": decode_updates, "delete": decode_deletes}
    print(f"{'table':32} {'kind':7} {'rows/s':>12} {'bytes/row':>10} fallback")
    for (table_id, what), rows in sorted(found.items()):
        table = history.table(table_id)
        if table is None or (args.tables and table.full_name not in args.tables):
            continue
        many = (rows * (args.rows // len(rows) + 1))[: args.rows]
        batches = [pa.array(many[i : i + args.batch], pa.large_binary()) for i in range(0, len(many), args.batch)]
        best, stats = float("inf"), DecodeStats()
        for _ in range(3):
            stats = DecodeStats()
            begin = time.perf_counter()
            for batch in batches:
                decoders[what](table, batch, stats)
            best = min(best, time.perf_counter() - begin)
        size = sum(map(len, many)) // len(many)
        print(f"{table.full_name:32} {what:7} {len(many) / best:12,.0f} {size:10} {stats.fallback / stats.rows:.1%}")


if __name__ == "__main__":
    main()
