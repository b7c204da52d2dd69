"""Tables as of some moments, from a log of windows and perhaps a base: what is asked for becomes a plan, and a plan
becomes rows, in this process or by Spark (`etl.asof.by_spark`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from etl.asof.bucket import Piece, Results, computed
from etl.asof.history import History, WindowLog, read_history
from etl.asof.lineage import StartTooLateError, families
from etl.asof.pieces import pieces
from etl.asof.plan import Plan
from etl.asof.planning import Start, make_plan
from etl.asof.versions import Version
from upstream.schema import Table


@dataclass(frozen=True, slots=True)
class AsOfTable:
    """A table as it was at a moment."""

    table: Table
    left_out: tuple[str, ...] = ()
    """Stored generated columns whose values nothing tells: the base doesn't hold them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be computed."""

    plan: Plan | None
    """None where no table is asked for."""
    tables: Mapping[int, Mapping[str, AsOfTable]]
    """By moment (TSO) and name."""
    start_ts: int
    skipped: tuple[int, ...] = ()
    """Transactions that operators had landing leave out: what they did is missing."""


def ask(log: WindowLog, bases: Iterable[Start], moments: Sequence[int], names: Sequence[str]) -> Asked:
    """The plan for tables (`schema.table`, also with * and ?) at moments (TSO). `bases` from the newest to the oldest,
    none after the first moment; without one that helps, tables must begin in the log. Raises AsOfError, relay errors.
    """
    refused: StartTooLateError | None = None
    for base in [*bases, None]:
        try:
            return _ask(log, base, tuple(sorted(set(moments))), names)
        except StartTooLateError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _ask(log: WindowLog, base: Start | None, moments: tuple[int, ...], names: Sequence[str]) -> Asked:
    first = log.first()
    start_ts = base.ts if base is not None else (first.lo if first is not None else 0)
    until_ts = moments[-1]
    history = read_history(log, start_ts, base.tables if base is not None else None, until_ts, moments)
    wanted = {moment: history.find(moment, names) for moment in moments}
    found = families(history, wanted)
    plan = make_plan(log, start_ts, until_ts, found, base) if found else None
    return Asked(plan, _described(wanted, plan), start_ts, tuple(history.skipped))


def _described(wanted: Mapping[int, Mapping[str, Table]], plan: Plan | None) -> dict[int, dict[str, AsOfTable]]:
    found: dict[int, dict[str, AsOfTable]] = {}
    for moment, tables in wanted.items():
        found[moment] = {}
        for name, table in tables.items():
            assert plan is not None
            version = version_at(plan, moment, name)
            left_out = [c.name for c in table.stored_columns if c.name not in version.labels]
            found[moment][name] = AsOfTable(table, tuple(left_out))
    return found


def version_at(plan: Plan, moment: int, name: str) -> Version:
    """The columns and keys of a result."""
    for buckets in plan.families:
        family = buckets.family
        table_id = family.results.get(moment, {}).get(name)
        if table_id is not None:
            return family.versions[family.breaks.index(moment) + 1][table_id]
    raise KeyError(name)


def compute(plan: Plan) -> Results:
    """All rows, in this process; for tests and small tables. Raises AsOfError, relay errors, CopyError."""
    found: dict[int, list[Piece]] = {}
    for number in range(len(plan.tasks)):
        for batch in pieces(plan, number):
            for piece in rows_of(batch):
                found.setdefault(piece.bucket, []).append(piece)
    results: dict[tuple[int, str], list[pa.Table]] = {}
    for bucket in range(plan.buckets):
        own = sorted(found.pop(bucket, ()), key=lambda p: (p.stretch, p.table_id, p.task, p.number))
        for key, rows in computed(plan.family_of(bucket).family, own).items():
            results.setdefault(key, []).append(rows)
    return {key: pa.concat_tables(tables) for key, tables in results.items()}


def rows_of(batch: pa.RecordBatch) -> Iterator[Piece]:
    """The pieces of a batch in PIECES."""
    columns = [column.to_pylist() for column in batch.columns[:-1]]
    for number, values in enumerate(zip(*columns, strict=True)):
        yield Piece(*values, batch.columns[-1][number].as_buffer())
