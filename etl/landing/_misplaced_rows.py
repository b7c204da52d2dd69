"""Stop at rows that EXCHANGE PARTITION has put into a partition where they don't belong upstream.

TiDB lets a transaction that began before an EXCHANGE PARTITION write to the ordinary table behind
it. Its rows lie in the partition then, whatever their values are: TiDB doesn't check. From then on
partition DDL and changes treat the row in another way upstream than downstream, where a row lies in
the partition of its values. No later binlog shows it, so the transaction is named before it is
landed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.relay import INSERT, UPDATE, Part, RelayLog, read_parts
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import FinishedRowMove
from sluice.tidb.partitions import PartitionError, partition_ids, partition_of
from sluice.tidb.rows import decode_inserts, decode_updates
from sluice.tidb.schema import Table
from sluice.tidb.table_name import argument


class MisplacedRowError(SluiceError):
    """A row lies in a partition upstream where it doesn't belong.

    Names commit_ts, tables, partition and DDL job.
    """

    hint = (
        "move the row upstream, then `sluice txn skip COMMIT_TS` and `sluice backfill --table NAME`"
    )


@dataclass(frozen=True, slots=True)
class _ExchangedTable:
    """An ordinary table that an EXCHANGE PARTITION made a partition."""

    job_id: int
    ordinary: Table
    partitioned: Table

    @property
    def partition(self) -> str:
        return partition_ids(self.partitioned)[self.ordinary.id]

    def refuses(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row doesn't belong into the partition.

        False where only TiDB can evaluate that.
        """
        try:
            return partition_of(self.partitioned, row) != self.ordinary.id
        except PartitionError:
            return False


def check_row_partitions(
    relay: RelayLog,
    schema: RecordedSchema,
    moves: Iterable[FinishedRowMove],
    parts: Sequence[Part],
    skips: Collection[int] = (),
) -> None:
    """Raise MisplacedRowError if the window has a row that went into a wrong partition.

    `moves`: what DDL through the window's end has moved lately. Transactions committed at `skips`
    are not looked at. Raises RowDecodeError and relay errors, too.
    """
    exchanged = _exchanged(schema, moves)
    if not exchanged:
        return
    for part in parts:
        changes = read_parts(relay.url, (part,))
        own = np.isin(changes["table_id"].to_numpy(), list(exchanged)) & (
            changes["kind"].to_numpy() <= UPDATE
        )
        for row in changes.filter(pa.array(own)).to_pylist() if own.any() else ():
            last = _last_exchange(exchanged[row["table_id"]], row["commit_ts"])
            if last is not None and row["commit_ts"] not in skips:
                for values in _row_text(last.ordinary, row):
                    if last.refuses(values):
                        raise _misplaced(last, row["commit_ts"], values)


def _exchanged(
    schema: RecordedSchema, moves: Iterable[FinishedRowMove]
) -> dict[int, list[tuple[int, _ExchangedTable | None]]]:
    """Return exchanges of each ordinary table in order, by its id, each with its commit_ts.

    That is 0 before the window. None: the id became an ordinary table's again.
    """
    inside = {ddl.job_id: ddl.commit_ts for ddl in schema.ddls}
    found: dict[int, list[tuple[int, _ExchangedTable | None]]] = {}
    for move in sorted(moves, key=lambda move: move.schema_version):
        if move.type != Action.EXCHANGE_PARTITION:
            continue
        commit_ts = inside.get(move.job_id, 0)
        partitioned = next(
            (t for t in move.effect.tables.values() if t is not None and t.is_partitioned), None
        )
        for table_id, table in move.effect.tables.items():
            before = move.before.get(table_id)
            if table is None and before is not None and partitioned is not None:
                found.setdefault(table_id, []).append(
                    (commit_ts, _ExchangedTable(move.job_id, before, partitioned))
                )
            elif table is not None and not table.is_partitioned:
                found.setdefault(table_id, []).append((commit_ts, None))
    return {i: own for i, own in found.items() if any(each is not None for _, each in own)}


def _last_exchange(
    exchanges: Sequence[tuple[int, _ExchangedTable | None]], commit_ts: int
) -> _ExchangedTable | None:
    """Return the exchange behind which a row was committed.

    None if its table was an ordinary one then.
    """
    last = None
    for exchanged_ts, each in exchanges:
        if exchanged_ts < commit_ts:
            last = each
    return last


def _row_text(table: Table, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    encoded = pa.array([row["row"]], pa.large_binary())
    decoded = (
        decode_inserts(table, encoded)
        if row["kind"] == INSERT
        else decode_updates(table, encoded)[1]
    )
    yield from decoded.to_pylist()


def _misplaced(
    exchanged: _ExchangedTable, commit_ts: int, values: Mapping[str, Any]
) -> MisplacedRowError:
    ordinary, partitioned = exchanged.ordinary.full_name, exchanged.partitioned.full_name
    return MisplacedRowError(
        f"transaction at commit_ts {commit_ts} ({tso.text(commit_ts)}) wrote to table {ordinary!r}"
        f" behind DDL job {exchanged.job_id}, EXCHANGE PARTITION. TiDB put its row into partition"
        f" {exchanged.partition!r} of table {partitioned!r}, where it does not belong:"
        f" {str(dict(values))[:500]}",
        hint=(
            "exchange the partition back upstream and move the row there; then leave the"
            f" transaction out, `sluice txn skip {commit_ts}`, and copy its tables: `sluice"
            f" backfill --table {argument(partitioned)} --table {argument(ordinary)}`"
        ),
    )
