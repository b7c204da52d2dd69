"""Check whether a change costs more where there is ten times as much.

There is more of windows, tables, columns, bytes a row, DDL jobs.

python -m sluice.bench.growth [windows] [tables] [columns] [rows] [ddl]

Each figure is taken in a process of its own, at one size and at ten times that, in turns. CPU time
(user and system) of the best of some runs, so that other work on the machine counts little;
seconds by the clock where a start is measured; MiB that the process grew by. Nothing runs beside
it but what `ddl` needs (the stand-in cluster). Windows are written without syncing, in the folder
that TMPDIR names: 600,000 of them take some 2.5 GiB there.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from sluice.bench.results import document, keep
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, WindowPayload, prepare
from sluice.etl.landing.extract import RowExtractor
from sluice.etl.landing.schema import LandingSchema
from sluice.relay import DELETE, INSERT, UPDATE, Part, RelayLog, WindowRecord
from sluice.relay.window import hour_of
from sluice.tidb import column_types, pb, tso
from sluice.tidb.history import SchemaHistory
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Table
from sluice.tidb.window_schema import WINDOW_SCHEMA

_FIRST_TS = tso.compose(1_790_000_000_000)
_TEXT: dict[str, Any] = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
_BEST_OF = 3
Figures = dict[str, float]


def windows(count: int) -> Figures:
    """Measure a relay log with a week of windows, and what begins at its end.

    That is landing, applying, removing what is old.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-growth-") as folder:
        relay = RelayLog.open(Path(folder).as_uri())
        ends = _write_windows(Path(folder), count)
        before = _rss()
        figures = {
            "landing begins, s": _clock(lambda: _land_begins(relay)),
            "applying begins, s": _clock(lambda: _apply_begins(relay, ends[-10])),
        }
        spent = []
        for _ in range(_BEST_OF):
            last = relay.last()
            assert last is not None
            spent.append(_cpu(functools.partial(_follow, relay, last.hi, 100)) / 100)
        figures["a window landed and found, CPU us"] = 1e6 * min(spent)
        middle = ends[count // 2]
        looked_up = [
            [_cpu(functools.partial(log.find, middle + 1)) for _ in range(3)]
            for log in (RelayLog.open(relay.url) for _ in range(_BEST_OF))
        ]
        figures["a timestamp looked up, CPU us"] = 1e6 * min(first for first, *_ in looked_up)
        figures["the same again, or another of that hour, CPU us"] = 1e6 * min(
            again for _, *others in looked_up for again in others
        )
        figures["a window removed, CPU us"] = 1e6 * _cpu(lambda: relay.purge(ends[1000])) / 1000
        figures["MiB more"] = _rss() - before
        return figures


def _write_windows(folder: Path, count: int) -> list[int]:
    """Write windows as landing does, but without syncing; return where each ends (TSO)."""
    step = tso.span(7 * 86_400_000) // count
    ends, lo = [], _FIRST_TS
    table = _table(1, 8).to_json()
    made: set[str] = set()
    # the last two hours: a process that begins reads what lies there
    with_parts = count - tso.span(7_200_000) // step
    for number in range(count):
        if (hour := hour_of(lo)) not in made:
            (folder / "windows" / hour).mkdir(parents=True)
            (folder / "parts" / hour).mkdir(parents=True)
            made.add(hour)
        path = f"parts/{hour}/{lo:020d}-{lo + step:020d}-bench-0.arrow"
        parts = (Part(path, 9, 3, 1, 0, lo + 1, lo + step),) if number >= with_parts else ()
        for part in parts:
            (folder / part.path).write_bytes(b"x")
        window = WindowRecord(
            lo, lo + step, 7, "bench", 0, 3, 9, 1, parts, {"1": table}, timings_ms={"plan": 1.0}
        )
        (folder / window.path).write_bytes(window.to_json())
        lo += step
        ends.append(lo)
    for hour in made:  # what was just written would be listed each time
        os.utime(folder / "windows" / hour, (1, 1))
    return ends


def _land_begins(relay: RelayLog) -> None:
    """Begin as `sluice.etl.landing.start_position.resume_from_log` does."""
    last = relay.last()
    assert last is not None
    relay.clean_unreferenced(since_ts=last.lo - tso.span(600_000))


def _apply_begins(relay: RelayLog, checkpoint_ts: int) -> None:
    assert relay.first() is not None
    assert relay.find(checkpoint_ts) is not None


def _follow(relay: RelayLog, at: int, count: int) -> None:
    """Look for `count` windows in vain by name, land each, and find it."""
    step = tso.span(1000)
    for number in range(count):
        assert relay.next(at) is None
        relay.commit(WindowRecord(at, at + step, 7, "bench", number, 0, 0, 1))
        assert relay.next(at) is not None
        at += step


def tables(count: int) -> Figures:
    """Measure `count` tables.

    A window has rows of ten of them, and changes are spread over all of them.
    """
    history = SchemaHistory(tables=[_table(1000 + n, 8) for n in range(count)], schema_version=5)
    schema = LandingSchema(history, _Nobody(), _Nobody())  # type: ignore[arg-type]
    span: Any = SimpleNamespace(
        rows=10,
        first_commit_ts=_FIRST_TS + 1,
        last_commit_ts=_FIRST_TS + 9,
        oldest_version=5,
        newest_version=5,
    )
    spans = {1000 + n: span for n in range(10)}
    figures = {
        "schema of a window, CPU us": _per(
            100, lambda: schema.resolve((), spans, lambda seconds: False)
        )
    }
    all_spans = dict.fromkeys(range(1000, 1000 + count), span)
    figures["a table in a window's record, CPU us"] = (
        _per(2, lambda: _recorded(schema, all_spans)) / count
    )
    rng = random.Random(1)
    few = [_table(1000 + n, 8) for n in range(300)]
    every = [_table(1000 + n, 8) for n in range(count)]
    figures |= _of_changes("a change of 300 tables", _changes(rng, few, 25_000, 40))
    figures |= _of_changes("a change of all tables", _changes(rng, every, 25_000, 40))
    figures["MiB at most"] = _rss()
    return figures


def _recorded(schema: LandingSchema, spans: dict[int, Any]) -> None:
    """Write and read the record of a window with rows of all these tables."""
    resolved = schema.resolve((), spans, lambda seconds: False)
    window = resolved.write_to(WindowRecord(_FIRST_TS, _FIRST_TS + 9, 7, "bench", 0, 3, 9, 5))
    WindowRecord.from_json(window.to_json())


class _Nobody:
    """PD and TiKV where no DDL makes landing ask them."""

    def tso(self) -> int:
        return _FIRST_TS

    def get(self, key: bytes, ts: int) -> bytes:
        """Return the schema version, whose DDL is done."""
        return b"5"


def columns(count: int) -> Figures:
    """Rows with so many columns, each of a few bytes."""
    rng = random.Random(1)
    made = _changes(rng, [_table(1, count)], 2_000, 2 * count)
    return _of_changes("a value", made, per=count)


def rows(size: int) -> Figures:
    """Rows with a text of so many bytes."""
    rng = random.Random(1)
    made = _changes(rng, [_table(1, 5)], 40_000_000 // (size + 2_000), size)
    figures = _of_changes("a change", made)
    each = sum(len(row) for *_, row in made) / len(made)
    figures |= {f"{name} and KiB": cpu / each * 1024 for name, cpu in list(figures.items())}
    return figures


def ddl(count: int) -> Figures:
    """Measure `count` DDL jobs in TiKV about 1,000 tables, and landing that begins with them.

    See sluice.bench.ddl_history.
    """
    from sluice.bench.ddl_history import measure

    return measure(count, 1_000)


_SIZES: dict[str, tuple[Callable[[int], Figures], tuple[int, ...]]] = {
    "windows": (windows, (60_000, 600_000)),
    "tables": (tables, (1_000, 10_000)),
    "columns": (columns, (100, 1_000)),
    "rows": (rows, (200, 2_048, 20_480)),
    "ddl": (ddl, (10_000, 100_000)),
}


# Changes, landed and prepared

Change = tuple[Table, int, bytes]


def _table(number: int, count: int) -> Table:
    """Return a table with a key, and columns of the kinds in turn."""
    kinds: tuple[dict[str, Any], ...] = (
        {"tp": column_types.VARCHAR, "flen": 20_480, **_TEXT},
        {"tp": column_types.INT, "flen": 11},
        {"tp": column_types.DECIMAL, "flen": 20, "decimal": 4},
        {"tp": column_types.DATETIME},
    )
    key = Column(
        1,
        "id",
        0,
        column_types.BIGINT,
        column_types.FLAG_NOT_NULL | column_types.FLAG_PRIMARY_KEY,
        version=2,
    )
    others = [Column(n + 1, f"c{n}", n, version=2, **kinds[n % 4]) for n in range(1, count)]
    return Table(
        number,
        1,
        "growth",
        f"t{number}",
        (key, *others),
        (),
        "utf8mb4",
        "utf8mb4_bin",
        pk_is_handle=True,
    )


def _changes(rng: random.Random, among: Sequence[Table], count: int, size: int) -> list[Change]:
    """Return inserts, and updates and deletes of what is there.

    A fourth of the columns is text, together `size` bytes.
    """
    of_text = size // max(1, sum(column.kind == "text" for column in among[0].columns))
    there: dict[int, list[dict[str, Any]]] = {}
    made: list[Change] = []

    def values(number: int, columns: Sequence[Column]) -> dict[str, Any]:
        row: dict[str, Any] = {"id": number}
        for column in columns[1:]:
            match column.kind:
                case "text":
                    row[column.name] = f"{rng.randrange(16**8):08x}" * (of_text // 8) + "x" * (
                        of_text % 8
                    )
                case "int":
                    row[column.name] = rng.randrange(10**6)
                case "decimal":
                    row[column.name] = f"{rng.randrange(10**6)}.{rng.randrange(10**4):04}"
                case _:
                    row[column.name] = (
                        f"2026-11-22 09:{rng.randrange(60):02}:{rng.randrange(60):02}"
                    )
        return row

    for number in range(count):
        table = among[number % len(among)]
        rows = there.setdefault(table.id, [])
        kind = rng.choices((INSERT, UPDATE, DELETE), (2, 5, 2))[0] if rows else INSERT
        if kind == INSERT:
            rows.append(values(number, table.columns))
            made.append((table, INSERT, encode_insert(table, rows[-1])))
        elif kind == DELETE:
            made.append((table, DELETE, encode_delete(table, rows.pop(rng.randrange(len(rows))))))
        else:
            at = rng.randrange(len(rows))
            old, rows[at] = (
                rows[at],
                rows[at] | values(number, table.columns[:3]) | {"id": rows[at]["id"]},
            )
            made.append((table, UPDATE, encode_update(table, old, rows[at])))
    return made


def _of_changes(what: str, changes: Sequence[Change], per: int = 1) -> Figures:
    """Measure what landing's worker and preparing take for each change.

    For each of its `per` values if that is given.
    """
    payloads = list(_payloads(changes))
    batch = pa.record_batch(
        [
            pa.array(column, field.type)
            for column, field in zip(zip(*payloads, strict=True), WINDOW_SCHEMA, strict=True)
        ],
        schema=WINDOW_SCHEMA,
    )
    known = {
        str(i): table.to_json() for i, table in {table.id: table for table, _, _ in changes}.items()
    }
    hi = payloads[-1][0]
    landing, preparing, cutting = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="sluice-growth-") as folder:
        relay = RelayLog.open(Path(folder).as_uri())
        for number in range(_BEST_OF):
            began = time.process_time()
            part = relay.write_part(
                _FIRST_TS, hi, f"bench{number}", 0, RowExtractor().extract(batch)
            )
            landing.append(time.process_time() - began)
            assert part is not None
            window = WindowRecord(
                _FIRST_TS, hi, 7, "bench", 0, len(payloads), len(changes), 5, (part,), known
            )
            whole = BatchPayload((WindowPayload.from_window(window),))
            for asked, spent in ((whole, preparing), (replace(whole, cut_tables=100), cutting)):
                text = asked.to_text()
                began = time.process_time()
                for _ in prepare(relay.url, BatchPayload.from_text(text), PrepareOptions()):
                    pass
                spent.append(time.process_time() - began)
    each = 1e6 / len(changes) / per
    return {
        f"{what} landed, CPU us": min(landing) * each,
        f"{what} prepared, CPU us": min(preparing) * each,
        f"{what} prepared for a server near by, CPU us": min(cutting) * each,
    }


def _payloads(changes: Sequence[Change]) -> Iterator[tuple[int, int, bytes]]:
    """Transactions of four changes as a pump hands them out: commit_ts, start_ts, the Prewrite."""
    sequence = {INSERT: 0, UPDATE: 1, DELETE: 4}
    for number, first in enumerate(range(0, len(changes), 4), 1):
        mutations: dict[int, Any] = {}
        for table, kind, row in changes[first : first + 4]:
            made = mutations.setdefault(table.id, pb.binlog.TableMutation(table_id=table.id))
            lists = {
                INSERT: made.inserted_rows,
                UPDATE: made.updated_rows,
                DELETE: made.deleted_rows,
            }
            lists[kind].append(row)
            made.sequence.append(sequence[kind])
        value = pb.binlog.PrewriteValue(schema_version=5, mutations=list(mutations.values()))
        start_ts = _FIRST_TS + 2 * number - 1
        binlog = pb.binlog.Binlog(start_ts=start_ts, prewrite_value=value.SerializeToString())
        yield start_ts + 1, start_ts, binlog.SerializeToString()


def _clock(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _cpu(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _per(times: int, call: Callable[[], Any]) -> float:
    """Return the microseconds of CPU time of a call, the least of some rounds."""
    return 1e6 * min(_cpu(lambda: [call() for _ in range(times)]) for _ in range(_BEST_OF)) / times


def _rss() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measured(name: str, size: int) -> Figures:
    return _SIZES[name][0](size)


def _in_process(name: str, size: int) -> Figures:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, name, size).result()


def main(wanted: Sequence[str]) -> None:
    """Print a table for each of `wanted`, and keep all of it as JSON."""
    found: dict[str, dict[str, Figures]] = {}
    for name in wanted or list(_SIZES):
        sizes = _SIZES[name][1]
        found[name] = {str(size): _in_process(name, size) for size in sizes}
        print(f"{name:<60}" + "".join(f"{size:>14,}" for size in sizes), flush=True)
        for figure in found[name][str(sizes[0])]:
            values = [found[name][str(size)][figure] for size in sizes]
            ratios = "".join(f"{value / values[0]:>7.2f}x" for value in values[1:] if values[0])
            print(
                f"  {figure:<58}" + "".join(f"{value:>14,.3f}" for value in values) + ratios,
                flush=True,
            )
    print(keep(Path(tempfile.gettempdir(), "sluice-growth-results"), document("growth", found)))


if __name__ == "__main__":
    main(sys.argv[1:])
