"""Values that a TiDB 6.6 converted by 324 `MODIFY COLUMN`s of the recording `conversions`, computed
from what was there before.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from sluice.tidb.codec.float import format_float
from sluice.tidb.conversion import ConversionError, ConversionSession, convert
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Column, Table
from tests.etl.relay_from_recording import RECORDINGS, jobs

RECORDING = RECORDINGS / "conversions"
# TiDB stored what is beyond the new type's range, so no other server can hold it.
REFUSED = {
    ("c_float__uint", "3"),
    ("c_double__uint", "1"),
    ("c_date__timestamp3", "3"),
    ("c_json__tinyint", "3"),
    ("c_json__tinyint", "5"),
}


def executed() -> Iterator[tuple[str, Column, Column, ConversionSession]]:
    """(table, old column, new column, session) of every conversion whose answer is recorded."""
    pairs = json.loads((RECORDING / "pairs.json").read_text())
    old: dict[str, Column] = {}
    for _, raw in sorted(jobs(RECORDING).items()):
        job = DdlHistoryJob.from_json(raw)
        if not job.finished or job.table_info is None or job.schema_name != "conv":
            continue
        table = Table.from_tidb(job.table_info, 1, "conv")
        value = next(c for c in table.columns if c.name == "v")
        if job.type == 12 and pairs.get(table.name) in ("strict", "loose"):
            hours, minutes = (
                int(part)
                for part in (job.time_zone if ":" in job.time_zone else "+00:00").split(":")
            )
            zone = datetime.timezone(datetime.timedelta(hours=hours, minutes=minutes))
            times = [
                datetime.datetime.fromtimestamp((ts >> 18) / 1000, datetime.UTC)
                for ts in (job.start_ts, job.finished_ts)
            ]
            yield (
                table.name,
                old[table.name],
                value,
                ConversionSession(job.sql_mode, zone, job.time_zone, *times),
            )
        old[table.name] = value


def snapshot(label: str, name: str) -> dict[str, Any]:
    lines = (RECORDING / "snapshots" / label / f"conv.{name}.jsonl").read_text().splitlines()[1:]
    return {row[0]: row[1] for row in map(json.loads, lines)}


def held(shown: Any, column: Column) -> Any:
    """A value as `convert` takes it, from what the snapshot says."""
    if shown is None:
        return None
    if isinstance(shown, dict):
        raw = bytes.fromhex(shown["hex"])
        return int.from_bytes(raw, "big") if column.kind == "bit" else raw
    match column.kind:
        case "int" | "year":
            return int(shown)
        case "float":
            return float(np.float32(shown))
        case "double":
            return float(shown)
        case "text" | "binary":
            return shown.encode()
        case "enum":
            return column.elems.index(shown) + 1 if shown else 0
        case "set":
            return sum(1 << column.elems.index(name) for name in shown.split(",")) if shown else 0
    return shown


def expected(shown: Any, column: Column) -> Any:
    if shown is None or column.kind in ("enum", "set", "float"):
        return shown
    if column.kind == "decimal":
        return Decimal(shown)
    return shown if column.kind == "text" else held(shown, column)


def computed(value: Any, column: Column) -> Any:
    if value is not None and column.kind == "float":
        return format_float(value)
    return Decimal(value) if value is not None and column.kind == "decimal" else value


def test_every_recorded_value_is_computed_to_the_byte_or_refused_by_name() -> None:
    wrong, refused, compared = [], set(), 0
    for name, old, new, session in executed():
        before, after = snapshot("a_before", name), snapshot("b_after", name)
        for key in before.keys() & after.keys():
            try:
                found = computed(
                    convert([held(before[key], old)], old, new, session)[0].as_py(), new
                )
            except ConversionError as error:
                refused.add((name, key))
                assert str(error)
                continue
            compared += 1
            if found != expected(after[key], new):
                wrong.append((name, before[key], found, after[key]))
    assert wrong == []
    assert refused == REFUSED
    assert compared > 1200


def test_in_strict_mode_nothing_recorded_as_strict_is_a_misfit() -> None:
    pairs = json.loads((RECORDING / "pairs.json").read_text())
    for name, old, new, session in executed():
        assert session.strict == (pairs[name] == "strict"), name
        if session.strict:
            convert(
                [held(value, old) for value in snapshot("a_before", name).values()],
                old,
                new,
                session,
            )


def test_what_the_loose_mode_converted_is_refused_in_strict_mode() -> None:
    pairs = json.loads((RECORDING / "pairs.json").read_text())
    for name, old, new, session in executed():
        if pairs[name] == "loose":
            with pytest.raises(ConversionError):
                convert(
                    [held(value, old) for value in snapshot("a_before", name).values()],
                    old,
                    new,
                    ConversionSession(
                        1436549152, session.zone, session.zone_name, session.began, session.ended
                    ),
                )
