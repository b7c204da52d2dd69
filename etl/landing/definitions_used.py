"""Resolve by which definition of a partitioned table its rows were written around partition DDL.

A binlog names the logical table and the schema version with which its transaction began. A
transaction that first touches a table behind a DDL uses the new definition all the same, and one
that touched it before may commit behind the DDL's binlog: nothing in the binlog distinguishes the
two. TiKV does. A row's key begins with the id of the partition, so the writes of the key in the
partition of either definition, which name their transaction, show where the row went.

Rows that a pump captured from TiKV need no such question: the pump converts a row by the definition
that TiKV had in front of its commit, and names that one.

The answer is written into the window: rows get the `schema_version` of the definition they were
written by, in a part that replaces the first one. A DDL that goes through several versions names
the transactions of earlier windows that were ahead of it. Applying, the archive and its readers
use these and need no TiKV.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._definition_chain import (
    Change,
    DefinitionChain,
    OwnWrites,
    PartitionStep,
    UndecidedChanges,
    images_by_row,
    steps_of,
)
from sluice.relay import PART_SCHEMA, Part, RelayLog, read_parts
from sluice.tidb import tso
from sluice.tidb.ddl_actions import MOVES_ROWS, REMOVES_PARTITIONS, Action
from sluice.tidb.ddl_job import FinishedRowMove
from sluice.tidb.schema import Table
from sluice.tidb.table_name import argument

if TYPE_CHECKING:
    from sluice.tidb.tikv import Mvcc

log = logging.getLogger("sluice.land")

ReadVersions = Callable[[Collection[bytes]], Mapping[bytes, "Mvcc"]]
"""Return the versions that TiKV has of each key."""

UpcomingDefinitions = Callable[[int], Sequence[Table]]
"""Return a table's definitions behind the window by its id."""


class DefinitionUnknownError(SluiceError):
    """TiKV no longer has the partition that a transaction wrote to.

    Names commit_ts, table and DDL job.
    """

    hint = (
        "skip the transaction (`sluice txn skip COMMIT_TS`), then copy the table (`sluice backfill"
        " --table NAME`)"
    )


class DefinitionResolver:
    """Resolve by which definitions the rows of a window were written."""

    def __init__(
        self, relay: RelayLog, read_versions: ReadVersions, gc_safe_point: Callable[[], int]
    ) -> None:
        """Create the definition resolver.

        `gc_safe_point` returns a TSO: TiKV may have dropped what was overwritten before.
        """
        self._relay, self._read_versions, self._gc_safe_point = relay, read_versions, gc_safe_point
        self._numbers = itertools.count()
        self._to_come: UpcomingDefinitions = lambda table_id: ()
        self._schema = RecordedSchema({}, (), (), 0)
        self._lo = 0

    def resolve(  # noqa: PLR0913 three options that are seldom given
        self,
        schema: RecordedSchema,
        moves: Sequence[FinishedRowMove],
        parts: tuple[Part, ...],
        bounds: tuple[int, int, str],
        skips: Collection[int] = (),
        to_come: UpcomingDefinitions = lambda table_id: (),
        *,
        is_captured: bool = False,
    ) -> tuple[RecordedSchema, tuple[Part, ...]]:
        """Return a window's schema and parts with the versions that TiKV's writes show.

        `moves`: what DDL through the window's end has moved lately, that of the window included.
        `bounds`: lo and hi (TSO) of the window and a token for new parts. Transactions committed at
        `skips` are left as they are. `to_come`: a transaction may be ahead of DDL whose binlog
        comes later. With `is_captured` the rows name their definitions already.

        Raises DefinitionUnknownError, TiKVError, RowDecodeError and relay errors.
        """
        self._to_come, self._schema, self._lo = to_come, schema, bounds[0]
        inside = {ddl.job_id: ddl.commit_ts for ddl in schema.ddls if ddl.type in MOVES_ROWS}
        if not inside and not schema.moved:
            return schema, parts
        earlier = {**self._commits_before(schema, bounds[0]), **inside}
        steps = steps_of((move, earlier.get(move.job_id, 0)) for move in moves)
        ahead = self._transactions_ahead(schema, steps, bounds[0], skips) if inside else {}
        if steps and not is_captured:
            parts = tuple(
                self._resolve_part(part, n, steps, bounds, skips) for n, part in enumerate(parts)
            )
        ddls = tuple(
            (
                replace(ddl, asked=True, ahead=tuple(sorted(ahead.get(ddl.job_id, ()))))
                if ddl.job_id in inside
                else ddl
            )
            for ddl in schema.ddls
        )
        return (
            replace(
                schema, ddls=ddls, moved=tuple(replace(move, asked=True) for move in schema.moved)
            ),
            parts,
        )

    def _resolve_part(
        self,
        part: Part,
        number: int,
        steps: Mapping[int, Sequence[PartitionStep]],
        bounds: tuple[int, int, str],
        skips: Collection[int],
    ) -> Part:
        changes = read_parts(self._relay.url, (part,))
        versions = changes["schema_version"].to_numpy().copy()
        changed = 0
        for table_id, own in steps.items():
            places = np.flatnonzero(changes["table_id"].to_numpy() == table_id)
            rows = _rows(changes, places, own, skips)
            for place, version in self._versions(
                own, rows, _own_writes(changes, own, rows)
            ).items():
                changed += int(versions[place] != version)
                versions[place] = version
        if not changed:
            return part
        log.info(
            "changes written by another definition than their binlog names: rows=%d part=%s",
            changed,
            part.path,
        )
        at = PART_SCHEMA.get_field_index("schema_version")
        resolved = changes.set_column(at, PART_SCHEMA.field(at), pa.array(versions, pa.int64()))
        lo, hi, token = bounds
        written = self._relay.write_part(
            lo, hi, f"{token}.asked{next(self._numbers)}", number, resolved.to_batches()
        )
        assert written is not None
        return written

    def _commits_before(self, schema: RecordedSchema, lo: int) -> dict[int, int]:
        """Return commit_ts by job id of the DDL in earlier windows since DDL of this one began."""
        began = [
            ddl.began_ts
            for ddl in schema.ddls
            if ddl.type in REMOVES_PARTITIONS and len(ddl.versions) > 1
        ]
        if not began or min(began) >= lo:
            return {}
        return {
            int(ddl["job_id"]): int(ddl["commit_ts"])
            for window in self._relay.windows(min(began), lo)
            for ddl in window.ddls
        }

    def _transactions_ahead(
        self,
        schema: RecordedSchema,
        steps: Mapping[int, Sequence[PartitionStep]],
        lo: int,
        skips: Collection[int],
    ) -> dict[int, set[int]]:
        """Return by job id transactions in earlier windows that were ahead of this one's DDL."""
        found: dict[int, set[int]] = defaultdict(set)
        coming = {ddl.job_id for ddl in schema.ddls}
        for table_id, own in steps.items():
            staged = [
                step
                for step in own
                if step.move.job_id in coming and step.has_stages and step.move.began_ts < lo
            ]
            if not staged:
                continue
            for window in self._relay.windows(min(step.move.began_ts for step in staged), lo):
                if str(table_id) not in window.tables or window.lo >= lo or window.is_captured:
                    continue
                changes = read_parts(self._relay.url, window.parts)
                places = np.flatnonzero(changes["table_id"].to_numpy() == table_id)
                rows = _rows(changes, places, staged, skips)
                for place, version in self._versions(
                    own, rows, _own_writes(changes, own, rows)
                ).items():
                    for step in staged:
                        if (
                            rows[place]["schema_version"] < step.new_version
                            and version >= step.last_version
                        ):
                            found[step.move.job_id].add(rows[place]["start_ts"])
        return found

    def _versions(
        self, steps: Sequence[PartitionStep], rows: Mapping[int, dict[str, Any]], beside: OwnWrites
    ) -> dict[int, int]:
        """Return by place the schema version by which rows were written, for those in doubt."""
        if not rows:
            return {}
        images = images_by_row(steps[-1].after, rows)
        places: dict[int, list[int]] = defaultdict(list)
        for place, row in rows.items():
            places[row["start_ts"]].append(place)
        changes = {
            start_ts: [(place, rows[place], images[place]) for place in own]
            for start_ts, own in places.items()
        }
        found, left = self._query_versions(DefinitionChain(steps), changes, beside)
        if left:
            later, left = self._query_versions(
                DefinitionChain(steps, self._other_definitions(steps)),
                {i: changes[i] for i in left},
                beside,
            )
            found |= later
        for doubt in left.values():
            raise self._unknown(doubt)
        return found

    def _other_definitions(self, steps: Sequence[PartitionStep]) -> list[tuple[int, Table]]:
        """Return the table's definitions since the first step with their schema versions.

        ADD and REORGANIZE PARTITION are no steps, and a transaction may have used what they made.
        """
        table_id, schema, lo = steps[-1].table_id, self._schema, self._lo
        recorded = [
            ddl
            for window in self._relay.windows(min(step.move.began_ts for step in steps), lo)
            for ddl in RecordedSchema.from_window(window).ddls
        ]
        found = [
            (ddl.schema_version, table)
            for ddl in (*recorded, *schema.ddls)
            if (table := ddl.effect.tables.get(table_id)) is not None
        ]
        newest = max((schema.schema_version, steps[-1].last_version))
        return sorted(found, key=itemgetter(0)) + [
            (newest + 1, table) for table in self._to_come(table_id)
        ]

    def _query_versions(
        self, chain: DefinitionChain, changes: Mapping[int, Sequence[Change]], beside: OwnWrites
    ) -> tuple[dict[int, int], dict[int, UndecidedChanges]]:
        """Return the version of rows by place, and the changes that TiKV's writes leave undecided.

        These and `changes` are by start_ts.
        """
        doubts = {
            start_ts: doubt
            for start_ts, own in changes.items()
            if (doubt := UndecidedChanges.from_changes(chain, own, beside)) is not None
        }
        keys = {key for doubt in doubts.values() for key in doubt.keys_to_read()}
        known = self._read_versions(keys) if keys else {}
        found: dict[int, int] = {}
        left = {}
        for start_ts, doubt in doubts.items():
            used = doubt.resolve(known)
            if used is None:
                left[start_ts] = doubt
            else:
                named = int(doubt.row["schema_version"])
                found |= dict.fromkeys(doubt.places, chain.version(used, named))
        return found, left

    def _unknown(self, doubt: UndecidedChanges) -> DefinitionUnknownError:
        row, table = doubt.row, doubt.chain.tables[-1]
        jobs = ", ".join(
            str(step.move.job_id) for step in doubt.chain.steps if step.is_in_doubt(row)
        )
        commit_ts = row["commit_ts"]
        why = (
            "TiDB's GC has dropped it"
            if self._gc_safe_point() >= commit_ts
            else (
                "its clustered key has a collation whose order only TiDB knows"
                if not doubt.has_handles
                else "TiKV has no write of that transaction in either partition"
            )
        )
        return DefinitionUnknownError(
            f"transaction at commit_ts {commit_ts} ({tso.text(commit_ts)}) changed rows of table"
            f" {table.full_name!r} while DDL job {jobs} changed its partitions, and which partition"
            f" they were written to is not known: {why}",
            hint=(
                f"leave it out: `sluice txn skip {commit_ts}`, then copy the table again:"
                f" `sluice backfill --table {argument(table.full_name)}`"
            ),
        )


def _rows(
    changes: pa.Table, places: np.ndarray, steps: Sequence[PartitionStep], skips: Collection[int]
) -> dict[int, dict[str, Any]]:
    """Return by place the changes at `places` of transactions for which a step is in doubt."""
    if not len(places):
        return {}
    names = ("commit_ts", "start_ts", "schema_version")
    columns = [changes[name].to_numpy()[places].tolist() for name in names]
    wanted = [
        place
        for place, values in zip(places.tolist(), zip(*columns, strict=True), strict=True)
        if values[0] not in skips
        and any(step.is_in_doubt(dict(zip(names, values, strict=True))) for step in steps)
    ]
    return dict(zip(wanted, changes.take(pa.array(wanted, pa.int64())).to_pylist(), strict=True))


def _own_writes(
    changes: pa.Table, steps: Sequence[PartitionStep], rows: Mapping[int, dict[str, Any]]
) -> OwnWrites:
    """Return what the transactions of `rows` wrote to tables that are exchanged with partitions."""
    moves = [step.move for step in steps if step.move.type == Action.EXCHANGE_PARTITION]
    tables = [
        (i, t)
        for move in moves
        for each in (move.before, move.effect.tables)
        for i, t in each.items()
    ]
    plain = {i: t for i, t in tables if t is not None and not t.is_partitioned}
    found: dict[tuple[int, bytes], set[int]] = defaultdict(set)
    if not plain or not rows:
        return found
    started = list({row["start_ts"] for row in rows.values()})
    mask = np.isin(changes["table_id"].to_numpy(), list(plain)) & np.isin(
        changes["start_ts"].to_numpy(), started
    )
    others = dict(enumerate(changes.filter(pa.array(mask)).to_pylist()))
    for table_id, table in plain.items():
        own = {place: row for place, row in others.items() if row["table_id"] == table_id}
        for place, images in images_by_row(table, own).items():
            for _, handle in images:
                if handle is not None:
                    found[own[place]["start_ts"], handle].add(table_id)
    return found
