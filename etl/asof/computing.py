"""What is asked for becomes a plan: from the newest base that helps, or from where tables begin in the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.asof.history import read_history
from etl.asof.lineage import StartTooLateError, families
from etl.asof.plan import Plan
from etl.asof.planning import Start, make_plan
from relay import WindowLog
from relay.archive import ArchiveLog
from upstream.schema import Table


@dataclass(frozen=True, slots=True)
class AsOfTable:
    """A table as it was at a moment: its definition, and `left_out`, stored generated columns whose values nothing
    tells, as the base doesn't hold what a database computes itself.
    """

    table: Table
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be computed."""

    plan: Plan | None
    """None where no table is asked for."""
    tables: Mapping[int, Mapping[str, AsOfTable]]
    """By moment (TSO) and name."""
    start_ts: int
    """Where the log is read from (TSO)."""
    skipped: tuple[int, ...] = ()
    """Transactions that operators had landing leave out: what they did is missing."""


def ask(
    log: WindowLog, bases: Iterable[Start], moments: Sequence[int], names: Sequence[str],
    ignored: Collection[int] = (),
) -> Asked:  # fmt: skip
    """The plan for tables (`schema.table`, also with * and ?) at moments (TSO). `bases` from the newest to the oldest,
    none after the first moment; without one that helps, tables must begin in the log. `ignored`: commit timestamps of
    transactions to be left out. Raises AsOfError, relay errors.
    """
    refused: StartTooLateError | None = None
    for base in [*bases, None]:
        try:
            return _ask(log, base, tuple(sorted(set(moments))), names, frozenset(ignored))
        except StartTooLateError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _ask(
    log: WindowLog, base: Start | None, moments: tuple[int, ...], names: Sequence[str], ignored: frozenset[int]
) -> Asked:
    first = log.first()
    start_ts = base.ts if base is not None else (first.lo if first is not None else 0)
    until_ts = moments[-1]
    history = read_history(log, start_ts, base.tables if base is not None else None, until_ts, moments)
    wanted = {moment: history.find(moment, names) for moment in moments}
    missing = tuple(sorted({*history.skipped, *(ts for ts in ignored if start_ts < ts <= until_ts)}))
    found = families(history, wanted, is_whole=not missing)
    if not found:
        return Asked(None, {moment: {} for moment in moments}, start_ts, missing)
    ids = {table_id for family in found for table_id in family.ids}
    narrow = log.for_tables(ids) if isinstance(log, ArchiveLog) else log
    plan = replace(make_plan(narrow, start_ts, until_ts, found, base), ignored=ignored)
    return Asked(plan, _described(wanted, plan), start_ts, missing)


def _described(wanted: Mapping[int, Mapping[str, Table]], plan: Plan) -> dict[int, dict[str, AsOfTable]]:
    return {
        moment: {name: _table(plan, moment, name, table) for name, table in tables.items()}
        for moment, tables in wanted.items()
    }


def _table(plan: Plan, moment: int, name: str, table: Table) -> AsOfTable:
    labels = plan.family_with(table.id).version_at(moment, name).labels
    return AsOfTable(table, tuple(c.name for c in table.stored_columns if c.name not in labels))
