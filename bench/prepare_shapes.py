"""Measure what preparing alone costs for traffic of several shapes: CPU time a row change.

Rows are read, decoded, reduced and written as SQL, without a database and without Spark.

    python -m sluice.bench.prepare_shapes many live wide
    python -m sluice.bench.prepare_shapes --rules

The names are of `sluice.bench.shapes`; all without any. With `--rules` it is what each kind of rule
costs with sysbench's. Each figure is the least of some rounds over the same relay log, in one
process; rules take turns.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.bench.apply import MASKED
from sluice.bench.apply_shapes import landed
from sluice.bench.shape_parts import history
from sluice.bench.shapes import SHAPES
from sluice.etl.changes.masks import MASK_KINDS
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.etl.changes.rules import Filter
from sluice.etl.settings.rules import parse_filter
from sluice.relay import RelayLog, WindowRecord

_ROUNDS = 5
_KEY_VARIABLE = "SLUICE_BENCH_MASK_KEY"
_COLUMN_RULES: dict[str, Any] = {
    "leave-out": {"leave-out": [MASKED]},
    "rename": {"rename": {MASKED: "renamed"}},
    "add": {"add": {"added": f"concat({MASKED}, pad)"}},
} | {
    f"mask {kind}": {"mask": {MASKED: {kind: argument} if argument else kind}}
    for kind, argument in {**dict.fromkeys(MASK_KINDS, 0), "partial": 4, "constant": "x"}.items()
    if kind != "shift-days"  # the shape has no dates
}
_ROW_RULE = {"tables": ["*.*"], "where": f"k >= 0 AND {MASKED} <> ''"}


def main(names: list[str]) -> None:
    """Print a line for each shape, or each rule."""
    if "--rules" in names:
        _compare_rules()
        return
    for name in names or list(SHAPES):
        with tempfile.TemporaryDirectory(prefix="sluice-prepare-") as folder:
            shape = SHAPES[name]()
            relay, filled_ts = landed(history(shape), Path(folder).as_uri(), shape.window)
            batches = list(_batches(relay, filled_ts, shape.batch))
            changes = sum(window.changes for batch in batches for window in batch)
            spent = min(_round(Path(folder).as_uri(), batches) for _ in range(_ROUNDS))
            sys.stdout.write(
                f"{name:14} {spent * 1e6 / changes:8.2f} us a row change, {changes} in"
                f" {len(batches)}\n"
            )
            sys.stdout.flush()


def _compare_rules() -> None:
    os.environ[_KEY_VARIABLE] = secrets.token_hex(32)
    section = {"key-env": _KEY_VARIABLE, "relay-log": "clear"}
    rules = {"none": Filter(), "rows": parse_filter({"rows": [_ROW_RULE]})[0]} | {
        name: parse_filter({"columns": [{"tables": ["*.*"], **rule}], "mask": section})[0]
        for name, rule in _COLUMN_RULES.items()
    }
    with tempfile.TemporaryDirectory(prefix="sluice-prepare-") as folder:
        shape = SHAPES["sysbench"]()
        url = Path(folder).as_uri()
        relay, filled_ts = landed(history(shape), url, shape.window)
        batches = list(_batches(relay, filled_ts, shape.batch))
        changes = sum(window.changes for batch in batches for window in batch)
        rounds = [
            {n: _round(url, batches, PrepareOptions(filters=f)) for n, f in rules.items()}
            for _ in range(_ROUNDS)
        ]
    least = {name: min(each[name] for each in rounds) * 1e6 / changes for name in rules}
    for name, spent in least.items():
        sys.stdout.write(f"{name:14} {spent:8.2f} us a row change, {spent - least['none']:+.2f}\n")


def _batches(relay: RelayLog, after_ts: int, most: int) -> Iterator[list[WindowRecord]]:
    batch: list[WindowRecord] = []
    for window in relay.windows(after_ts):
        if batch and sum(each.changes for each in batch) + window.changes > most:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _round(
    url: str, batches: list[list[WindowRecord]], options: PrepareOptions | None = None
) -> float:
    documents = [BatchPayload.from_windows(batch) for batch in batches]
    began = time.process_time()
    for document in documents:
        for _ in prepare(url, document, options or PrepareOptions()):
            pass
    return time.process_time() - began


if __name__ == "__main__":
    main(sys.argv[1:])
