"""Measure a capture's work in one process: TiKV's messages in, synced records in a store out.

The messages are made before, of sysbench's rows: each transaction inserts a row, deletes one and
updates two, or has other numbers of changes. `sluice.bench.capture_stream` measures the
connection, too.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sluice.pump_service.capture import kernel
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.matcher import Matcher, MatcherTotals
from sluice.pump_service.capture.run_files import RunFolder
from sluice.pump_service.capture.schema_tracker import SchemaTracker
from sluice.pump_service.capture.sorter import CommitSorter
from sluice.pump_service.capture.transactions import CapturedTransaction
from sluice.pump_service.store import Store, StoreOptions
from sluice.tidb import pb, tso
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.column_types import CHAR, INT
from sluice.tidb.record_keys import record_key
from sluice.tidb.stored_rows import VERSION_2
from sluice.tidb.tikv.meta import hash_field_key, table_key

ROWS = 400_000
CHANGES = 4
REGION_ID = 2
"""The region that has the table."""
_SCHEMA_ID, _TABLE_ID = 2, 50
_ROWS_PER_EVENT = 64
_TRANSACTIONS_PER_FRONTIER = 5000
_MEMORY_BYTES = 256 << 20
_NOT_NULL, _PRIMARY = 1, 2


@dataclass(slots=True)
class CaptureResult:
    """A measurement's figures.

    CPU is in µs a row change; `store` is what the pump's threads did beside.
    """

    rows: int
    transactions: int
    changes_per_transaction: int
    is_compiled: bool
    seconds: float = 0.0
    message_bytes: int = 0
    stored_bytes: int = 0
    cpu_us: dict[str, float] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        """Return row changes a second, from the first message until the last record is readable."""
        return self.rows / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return asdict(self) | {"rows_per_s": self.rows_per_s}


class _Clock:
    """Add up the CPU time of this thread by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"match": 0.0, "sort": 0.0, "convert and write": 0.0}
        self._last = time.thread_time()

    def spent_on(self, stage: str) -> None:
        """Count what has passed since the last call."""
        now = time.thread_time()
        self.seconds[stage] += now - self._last
        self._last = now


def measure(rows: int, changes: int, report: Callable[[str], None]) -> CaptureResult:
    """Capture `rows` changes, `changes` a transaction, into a store in a temporary folder."""
    count = max(1, rows // changes)
    report(f"making {count:,} transactions of {changes} changes")
    first_ts = tso.compose(1_700_000_000_000, 0)
    messages = list(made_messages(first_ts, count, changes))
    result = CaptureResult(count * changes, count, changes, kernel.IS_COMPILED)
    result.message_bytes = sum(len(payload) for payload, _ in messages)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        options = StoreOptions(is_captured=True, stop_write_at_available_space=0)
        store = Store.open(Path(folder) / "pump", options)
        try:
            _run(store, Path(folder) / "runs", messages, first_ts, result)
            result.stored_bytes = store.stats().bytes
        finally:
            store.close()
    return result


def _run(
    store: Store,
    folder: Path,
    messages: list[tuple[bytes, int]],
    first_ts: int,
    result: CaptureResult,
) -> None:
    sorter = CommitSorter(RunFolder(folder), _MEMORY_BYTES)
    totals = MatcherTotals(sorter, _MEMORY_BYTES)
    matcher = Matcher(b"", b"\xff", first_ts - 1, totals)
    matcher.initialized = True
    sink = BinlogWriter(store, sysbench_schema())
    whole, began = time.process_time(), time.monotonic()
    clock = _Clock()
    for payload, resolved_ts in messages:
        for event in pb.cdc.ChangeDataEvent.FromString(payload).events:
            matcher.take_in(event.entries)
        clock.spent_on("match")
        if resolved_ts:
            matcher.resolved_ts = resolved_ts
            sink.advance(_timed(sorter.take(resolved_ts), clock), resolved_ts)
            clock.spent_on("convert and write")
    while store.max_commit_ts < sink.resolved_ts:
        time.sleep(0.001)
    result.seconds = time.monotonic() - began
    stages = clock.seconds | {"store": time.process_time() - whole - sum(clock.seconds.values())}
    result.cpu_us = {name: found / result.rows * 1e6 for name, found in stages.items()}
    if sink.rows != result.rows:
        raise RuntimeError(f"{sink.rows} of {result.rows} row changes arrived in the store")


def _timed(
    transactions: Iterator[CapturedTransaction], clock: _Clock
) -> Iterator[CapturedTransaction]:
    for each in transactions:
        clock.spent_on("sort")
        yield each
        clock.spent_on("convert and write")


def made_messages(first_ts: int, count: int, changes: int) -> Iterator[tuple[bytes, int]]:
    """Yield messages as TiKV sends them, each with the resolved ts that follows it, or 0."""
    rows: list[Any] = []
    for number in range(count):
        start_ts = first_ts + 2 * number
        rows += _rows_of(start_ts, number * changes, changes)
        is_frontier = (number + 1) % _TRANSACTIONS_PER_FRONTIER == 0 or number + 1 == count
        while len(rows) >= _ROWS_PER_EVENT or (is_frontier and rows):
            event = pb.cdc.Event(region_id=REGION_ID, request_id=1)
            event.entries.entries.extend(rows[:_ROWS_PER_EVENT])
            del rows[:_ROWS_PER_EVENT]
            payload = pb.cdc.ChangeDataEvent(events=[event]).SerializeToString()
            yield payload, start_ts + 1 if is_frontier and not rows else 0


def _rows_of(start_ts: int, begin: int, changes: int) -> list[Any]:
    """Return the prewrites of a transaction, then its commits."""
    found = []
    for at in range(begin, begin + changes):
        kind = at % 4
        value = b"" if kind == 1 else _value(at + 1)
        old_value = b"" if kind == 0 else _value(at)
        found.append(
            pb.cdc.Event.Row(
                start_ts=start_ts,
                type=pb.cdc.Event.PREWRITE,
                op_type=pb.cdc.Event.Row.DELETE if kind == 1 else pb.cdc.Event.Row.PUT,
                key=record_key(_TABLE_ID, encode_int(at)),
                value=value,
                old_value=old_value,
            )
        )
    commits = [
        pb.cdc.Event.Row(
            start_ts=start_ts,
            commit_ts=start_ts + 1,
            type=pb.cdc.Event.COMMIT,
            op_type=row.op_type,
            key=row.key,
            value=row.value,
        )
        for row in found
    ]
    return found + commits


def _value(number: int) -> bytes:
    """Return a row of sysbench as TiKV stores it."""
    text = "-".join(f"{number * n % 10**11:011}" for n in range(1, 11)).encode()
    values = [struct.pack("<i", number % 2**31), text, text[:59]]
    ends, at = [], 0
    for value in values:
        at += len(value)
        ends.append(at)
    head = struct.pack("<BBHH3B3H", VERSION_2, 0, 3, 0, 2, 3, 4, *ends)
    return head + b"".join(values)


def sysbench_schema() -> SchemaTracker:
    """Return the definitions of a cluster with one table of sysbench."""
    types = {"id": INT, "k": INT, "c": CHAR, "pad": CHAR}
    columns = [
        {
            "id": number + 1,
            "name": {"O": name, "L": name},
            "offset": number,
            "state": 5,
            "type": {
                "Tp": tp,
                "Flag": _NOT_NULL | (0 if number else _PRIMARY),
                "Charset": "utf8mb4" if tp == CHAR else "binary",
                "Collate": "utf8mb4_bin" if tp == CHAR else "binary",
            },
        }
        for number, (name, tp) in enumerate(types.items())
    ]
    table = {
        "id": _TABLE_ID,
        "name": {"O": "sbtest1", "L": "sbtest1"},
        "cols": columns,
        "pk_is_handle": True,
        "state": 5,
    }
    database = {"id": _SCHEMA_ID, "db_name": {"O": "sbtest", "L": "sbtest"}}
    definitions = [
        (hash_field_key("DBs", f"DB:{_SCHEMA_ID}".encode()), database),
        (table_key(_SCHEMA_ID, _TABLE_ID), table),
    ]
    return SchemaTracker([(key, json.dumps(value).encode()) for key, value in definitions], 1)
