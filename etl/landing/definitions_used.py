"""Ask TiKV by which definition of a partitioned table its rows were written around partition DDL.

A binlog names the logical table and the schema version with which its transaction began. A transaction that first
touches a table behind a DDL uses the new definition all the same, and one that touched it before may commit behind the
DDL's binlog: nothing in the binlog tells the two apart. TiKV does. A row's key begins with the id of the partition, so
the writes of the key in the partition of either definition, which name their transaction, show where the row went.

What TiKV says is written into the window: rows get the `schema_version` of the definition they were written by, in a
part that takes the place of the first one, and a DDL that goes through several versions names the transactions of
earlier windows that were ahead of it. Applying, the archive and all that reads it go by these and need no TiKV.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, Part, RelayLog, read_parts
from sluice.tidb import tso
from sluice.tidb.ddl_actions import MOVES_ROWS, REMOVES_PARTITIONS, Action
from sluice.tidb.ddl_job import FinishedRowMove
from sluice.tidb.partitions import PartitionError, partition_ids, partition_of
from sluice.tidb.record_keys import handle_of_insert, handles_of_images, record_key
from sluice.tidb.rows import decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Table
from sluice.tidb.table_name import argument

if TYPE_CHECKING:
    from sluice.tidb.tikv import Mvcc

log = logging.getLogger("sluice.land")

AskTiKV = Callable[[Collection[bytes]], Mapping[bytes, "Mvcc"]]
"""From keys to what TiKV has of each."""

UpcomingDefinitions = Callable[[int], Sequence[Table]]
"""From a table id to its definitions behind the window, as far as there are any."""

_Partitions = frozenset[int]
_Beside = Mapping[tuple[int, bytes], set[int]]
"""By start_ts and handle, the tables for which partitions are exchanged and that the transaction wrote to itself."""


class DefinitionUnknownError(SluiceError):
    """TiKV has no record any more of which partition a transaction wrote to; names commit_ts, table and DDL job."""

    way_out = "skip the transaction (`sluice txn skip COMMIT_TS`), then copy the table (`sluice backfill --table NAME`)"


_Image = tuple[dict[str, Any], bytes | None]
"""Values by column name, and the handle."""
_Change = tuple[int, dict[str, Any], list[_Image]]
"""Its place in the part, its row there, and its images."""


@dataclass(frozen=True, slots=True)
class PartitionStep:
    """A DDL that moves rows between or out of partitions of one table."""

    move: FinishedRowMove
    table_id: int
    commit_ts: int
    """Of its binlog; 0: before everything that is asked about."""

    @property
    def first_version(self) -> int:
        return (self.move.versions or (self.move.schema_version,))[0]

    @property
    def last_version(self) -> int:
        return self.move.schema_version

    @property
    def new_version(self) -> int:
        """The first schema version with the definition that it leaves behind."""
        return self.first_version if self.move.type in REMOVES_PARTITIONS else self.last_version

    @property
    def has_stages(self) -> bool:
        """Whether transactions may use what it leaves behind before its binlog comes."""
        return self.new_version < self.last_version

    @property
    def before(self) -> Table:
        table = self.move.before[self.table_id]
        assert table is not None
        return table

    @property
    def after(self) -> Table:
        table = self.move.effect.tables[self.table_id]
        assert table is not None
        return table

    def is_in_doubt(self, change: Mapping[str, Any]) -> bool:
        """Whether either of its definitions may be that by which a change was made.

        A transaction that names the new version and began before the job was over may have been planned before it.
        """
        if change["commit_ts"] < self.move.began_ts or (change["commit_ts"] < self.commit_ts and not self.has_stages):
            return False
        return bool(change["schema_version"] < self.new_version or change["start_ts"] <= self.move.finished_ts)


def steps_of(moves: Iterable[tuple[FinishedRowMove, int]]) -> dict[int, list[PartitionStep]]:
    """Return by table id the DDL of `moves` (each with the commit ts of its binlog) that changes its partitions."""
    found: dict[int, list[PartitionStep]] = defaultdict(list)
    for move, commit_ts in sorted(moves, key=lambda pair: pair[0].schema_version):
        if move.type not in REMOVES_PARTITIONS | {Action.EXCHANGE_PARTITION}:
            continue
        for table_id, table in move.before.items():
            if table is not None and table.is_partitioned and move.effect.tables.get(table_id) is not None:
                found[table_id].append(PartitionStep(move, table_id, commit_ts))
    return found


class DefinitionResolver:
    """Settles by which definitions the rows of a window were written."""

    def __init__(self, relay: RelayLog, ask: AskTiKV, gc_safe_point: Callable[[], int]) -> None:
        """`gc_safe_point` returns a TSO: TiKV may have dropped what was overwritten before."""
        self._relay, self._ask, self._gc_safe_point = relay, ask, gc_safe_point
        self._numbers = itertools.count()
        self._to_come: UpcomingDefinitions = lambda table_id: ()

    def settle(  # noqa: PLR0913 two wishes that are seldom there, by name
        self,
        schema: RecordedSchema,
        moves: Sequence[FinishedRowMove],
        parts: tuple[Part, ...],
        bounds: tuple[int, int, str],
        skips: Collection[int] = (),
        to_come: UpcomingDefinitions = lambda table_id: (),
    ) -> tuple[RecordedSchema, tuple[Part, ...]]:
        """Return a window's schema and parts as TiKV says.

        `moves`: what DDL through the window's end has moved lately, that of the window included. `bounds`: lo and hi
        (TSO) of the window and a token for new parts. Transactions committed at `skips` are not asked about.
        `to_come`: a transaction may be ahead of DDL whose binlog comes later.

        Raises DefinitionUnknownError, TiKVError, RowDecodeError and relay errors.
        """
        self._to_come = to_come
        inside = {ddl.job_id: ddl.commit_ts for ddl in schema.ddls if ddl.type in MOVES_ROWS}
        if not inside and not schema.moved:
            return schema, parts
        earlier = {**self._commits_before(schema, moves, bounds[0]), **inside}
        steps = steps_of((move, earlier.get(move.job_id, 0)) for move in moves)
        ahead = self._transactions_ahead(schema, steps, bounds[0], skips) if inside else {}
        if steps:
            parts = tuple(self._settled(part, n, steps, bounds, skips) for n, part in enumerate(parts))
        ddls = tuple(
            replace(ddl, asked=True, ahead=tuple(sorted(ahead.get(ddl.job_id, ())))) if ddl.job_id in inside else ddl
            for ddl in schema.ddls
        )
        return replace(schema, ddls=ddls, moved=tuple(replace(move, asked=True) for move in schema.moved)), parts

    def _settled(
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
            for place, version in self._versions(own, rows, _beside(changes, own, rows)).items():
                changed += int(versions[place] != version)
                versions[place] = version
        if not changed:
            return part
        log.info("changes written by another definition than their binlog names: rows=%d part=%s", changed, part.path)
        at = PART_SCHEMA.get_field_index("schema_version")
        settled = changes.set_column(at, PART_SCHEMA.field(at), pa.array(versions, pa.int64()))
        lo, hi, token = bounds
        written = self._relay.write_part(lo, hi, f"{token}.asked{next(self._numbers)}", number, settled.to_batches())
        assert written is not None
        return written

    def _commits_before(self, schema: RecordedSchema, moves: Sequence[FinishedRowMove], lo: int) -> dict[int, int]:
        """Commit ts by job id of DDL in earlier windows since DDL of this one began: rows of these are asked about."""
        began = [ddl.began_ts for ddl in schema.ddls if ddl.type in REMOVES_PARTITIONS and len(ddl.versions) > 1]
        if not began or min(began) >= lo:
            return {}
        return {
            int(ddl["job_id"]): int(ddl["commit_ts"])
            for window in self._relay.windows(min(began), lo)
            for ddl in window.ddls
        }

    def _transactions_ahead(
        self, schema: RecordedSchema, steps: Mapping[int, Sequence[PartitionStep]], lo: int, skips: Collection[int]
    ) -> dict[int, set[int]]:
        """Transactions in earlier windows that were ahead of DDL of this one, by job id."""
        found: dict[int, set[int]] = defaultdict(set)
        coming = {ddl.job_id for ddl in schema.ddls}
        for table_id, own in steps.items():
            staged = [
                step for step in own if step.move.job_id in coming and step.has_stages and step.move.began_ts < lo
            ]
            if not staged:
                continue
            for window in self._relay.windows(min(step.move.began_ts for step in staged), lo):
                if str(table_id) not in window.tables or window.lo >= lo:
                    continue
                changes = read_parts(self._relay.url, window.parts)
                places = np.flatnonzero(changes["table_id"].to_numpy() == table_id)
                rows = _rows(changes, places, staged, skips)
                for place, version in self._versions(own, rows, _beside(changes, own, rows)).items():
                    for step in staged:
                        if rows[place]["schema_version"] < step.new_version and version >= step.last_version:
                            found[step.move.job_id].add(rows[place]["start_ts"])
        return found

    def _versions(
        self, steps: Sequence[PartitionStep], rows: Mapping[int, dict[str, Any]], beside: _Beside
    ) -> dict[int, int]:
        """The schema version by which rows (by their place) were written, as far as that is in doubt."""
        if not rows:
            return {}
        images = _images(steps[-1].after, rows)
        places: dict[int, list[int]] = defaultdict(list)
        for place, row in rows.items():
            places[row["start_ts"]].append(place)
        changes = {start_ts: [(place, rows[place], images[place]) for place in own] for start_ts, own in places.items()}
        found, left = self._query_versions(_DefinitionChain(steps), changes, beside)
        if left:
            coming = self._to_come(steps[-1].table_id)
            later, left = self._query_versions(_DefinitionChain(steps, coming), {i: changes[i] for i in left}, beside)
            found |= later
        for doubt in left.values():
            raise self._unknown(doubt)
        return found

    def _query_versions(
        self, chain: _DefinitionChain, changes: Mapping[int, Sequence[_Change]], beside: _Beside
    ) -> tuple[dict[int, int], dict[int, _UndecidedChanges]]:
        """The version of rows by place, and of which transactions (start_ts) TiKV told nothing. `changes`: theirs."""
        doubts = {
            start_ts: doubt
            for start_ts, own in changes.items()
            if (doubt := _UndecidedChanges.from_changes(chain, own, beside)) is not None
        }
        keys = {key for doubt in doubts.values() for key in doubt.keys_that_tell()}
        known = self._ask(keys) if keys else {}
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

    def _unknown(self, doubt: _UndecidedChanges) -> DefinitionUnknownError:
        row, table = doubt.row, doubt.chain.tables[-1]
        jobs = ", ".join(str(step.move.job_id) for step in doubt.chain.steps if step.is_in_doubt(row))
        commit_ts = row["commit_ts"]
        why = (
            "TiDB's GC has dropped it"
            if self._gc_safe_point() >= commit_ts
            else "its clustered key has a collation whose order only TiDB knows"
            if not doubt.has_handles
            else "TiKV has no write of that transaction in either partition"
        )
        return DefinitionUnknownError(
            f"transaction at commit_ts {commit_ts} ({tso.text(commit_ts)}) changed rows of table {table.full_name!r}"
            f" while DDL job {jobs} changed its partitions, and which partition they were written to is not known:"
            f" {why}",
            way_out=f"leave it out: `sluice txn skip {commit_ts}`, then copy the table again:"
            f" `sluice backfill --table {argument(table.full_name)}`",
        )


class _DefinitionChain:
    """The definitions that a table had, one after the other: that before and that after each step."""

    def __init__(self, steps: Sequence[PartitionStep], to_come: Sequence[Table] = ()) -> None:
        """`to_come`: definitions behind the last step."""
        self.steps = steps
        self.tables: list[Table] = []
        self.before: list[int] = []
        self.after: list[int] = []
        """Of each step, the place of its definition before and after it in `tables`."""
        for step in steps:
            if not self.tables or partition_ids(self.tables[-1]).keys() != partition_ids(step.before).keys():
                self.tables.append(step.before)
            self.before.append(len(self.tables) - 1)
            self.tables.append(step.after)
            self.after.append(len(self.tables) - 1)
        self.tables += to_come

    def allowed(self, row: Mapping[str, Any]) -> range:
        """The definitions by which a change may have been made."""
        first, last = 0, len(self.tables) - 1
        for step, before, after in zip(self.steps, self.before, self.after, strict=True):
            if step.is_in_doubt(row):
                continue
            is_behind = row["commit_ts"] > step.commit_ts and row["commit_ts"] >= step.move.began_ts
            if is_behind or row["schema_version"] >= step.new_version:
                first = max(first, after)
            else:
                last = min(last, before)
        return range(first, last + 1)

    def version(self, used: int, named: int) -> int:
        """The schema version that says that the definition `used` made a change whose binlog names another."""
        for step, after in zip(self.steps, self.after, strict=True):
            if after <= used:
                named = max(named, step.last_version)
        for step, after in zip(self.steps, self.after, strict=True):
            if used < after:
                named = min(named, step.new_version - 1)
        return named


@dataclass(slots=True)
class _UndecidedChanges:
    """The changes that one transaction made in a table, by one definition of several."""

    chain: _DefinitionChain
    allowed: range
    row: Mapping[str, Any]
    """One of the changes."""
    places: Sequence[int]
    written: dict[bytes, list[tuple[_Partitions, ...]]] = field(default_factory=lambda: defaultdict(list))
    """By handle, for each image of a row the partitions it may lie in by each allowed definition."""
    kinds: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    beside: _Beside = field(default_factory=dict)
    has_handles: bool = True

    @classmethod
    def from_changes(
        cls, chain: _DefinitionChain, changes: Sequence[_Change], beside: _Beside
    ) -> _UndecidedChanges | None:
        """None if all definitions that are possible put the rows into the same partitions."""
        row = changes[0][1]
        found = cls(chain, chain.allowed(row), row, [place for place, _, _ in changes], beside=beside)
        is_open = False
        for _, change, images in changes:
            for (image, handle), kind in zip(images, _image_kinds(change["kind"]), strict=True):
                lies = tuple(_partitions(chain.tables[i], image) for i in found.allowed)
                is_open |= len(set(lies)) > 1
                if handle is None:
                    found.has_handles = False
                else:
                    found.written[handle].append(lies)
                    found.kinds[handle].append(kind)
        return found if is_open else None

    def keys_that_tell(self) -> Iterator[bytes]:
        """The rows' keys by each definition."""
        for handle, images in self.written.items():
            for partition in self._candidates(images):
                yield record_key(partition, handle)

    def resolve(self, known: Mapping[bytes, Mvcc]) -> int | None:
        """The definition by which the changes were made; None if that can't be told."""
        left, is_seen = set(range(len(self.allowed))), False
        for handle, images in self.written.items():
            candidates = self._candidates(images)
            beside = candidates & self.beside.get((self.row["start_ts"], handle), set())
            there = {
                partition
                for partition in candidates
                if known[record_key(partition, handle)].was_written_by(self.row["start_ts"])
            }
            if there:
                is_seen = True
                left &= {i for i in left if _explains([lies[i] for lies in images], there, beside)}
        return self.allowed[max(left)] if left and (is_seen or self._leaves_nothing) else None

    @property
    def _leaves_nothing(self) -> bool:
        """Whether all rows came and went in the transaction: TiKV has none of them, and it doesn't matter where."""
        ends = ((kinds[0], kinds[-1]) for kinds in self.kinds.values())
        return self.has_handles and all(pair == (INSERT, DELETE) for pair in ends)

    @staticmethod
    def _candidates(images: Sequence[tuple[_Partitions, ...]]) -> set[int]:
        return {partition for lies in images for partitions in lies for partition in partitions}


def _explains(images: Sequence[_Partitions], there: set[int], beside: set[int]) -> bool:
    """Whether rows that lie in one of these partitions each, and others in all of `beside`, are what is `there`."""
    if any(not partitions & there for partitions in images):
        return False
    if any(len(partitions) > 1 for partitions in images):
        return there <= beside.union(*images)
    return there == beside.union(*images)


def _partitions(table: Table, image: Mapping[str, Any]) -> _Partitions:
    """Where a row may lie by a definition: one partition, none, or all where only TiDB can evaluate it."""
    try:
        partition = partition_of(table, image)
    except PartitionError:
        return frozenset(partition_ids(table))
    return frozenset() if partition is None else frozenset((partition,))


def _rows(
    changes: pa.Table, places: np.ndarray, steps: Sequence[PartitionStep], skips: Collection[int]
) -> dict[int, dict[str, Any]]:
    """The changes at `places`, by place, of transactions of which a step is in doubt."""
    if not len(places):
        return {}
    names = ("commit_ts", "start_ts", "schema_version")
    columns = [changes[name].to_numpy()[places].tolist() for name in names]
    wanted = [
        place
        for place, values in zip(places.tolist(), zip(*columns, strict=True), strict=True)
        if values[0] not in skips and any(step.is_in_doubt(dict(zip(names, values, strict=True))) for step in steps)
    ]
    return dict(zip(wanted, changes.take(pa.array(wanted, pa.int64())).to_pylist(), strict=True))


def _beside(changes: pa.Table, steps: Sequence[PartitionStep], rows: Mapping[int, dict[str, Any]]) -> _Beside:
    """What the transactions of `rows` wrote under the same names as partitions that are exchanged."""
    moves = [step.move for step in steps if step.move.type == Action.EXCHANGE_PARTITION]
    tables = [(i, t) for move in moves for each in (move.before, move.effect.tables) for i, t in each.items()]
    plain = {i: t for i, t in tables if t is not None and not t.is_partitioned}
    found: dict[tuple[int, bytes], set[int]] = defaultdict(set)
    if not plain or not rows:
        return found
    started = list({row["start_ts"] for row in rows.values()})
    mask = np.isin(changes["table_id"].to_numpy(), list(plain)) & np.isin(changes["start_ts"].to_numpy(), started)
    others = dict(enumerate(changes.filter(pa.array(mask)).to_pylist()))
    for table_id, table in plain.items():
        own = {place: row for place, row in others.items() if row["table_id"] == table_id}
        for place, images in _images(table, own).items():
            for _, handle in images:
                if handle is not None:
                    found[own[place]["start_ts"], handle].add(table_id)
    return found


def _image_kinds(kind: int) -> tuple[int, ...]:
    return (UPDATE, UPDATE) if kind == UPDATE else (kind,)


def _images(table: Table, rows: Mapping[int, dict[str, Any]]) -> dict[int, list[_Image]]:
    """Each change's images with the handle of each."""
    found: dict[int, list[_Image]] = {}
    for kind, group in itertools.groupby(
        sorted(rows, key=lambda place: rows[place]["kind"]), lambda p: rows[p]["kind"]
    ):
        places = list(group)
        encoded = pa.array([rows[place]["row"] for place in places], pa.large_binary())
        if kind == UPDATE:
            sides = [batch.to_pylist() for batch in decode_updates(table, encoded)]
        else:
            sides = [(decode_inserts if kind == INSERT else decode_deletes)(table, encoded).to_pylist()]
        for place, *images in zip(places, *sides, strict=True):
            row = rows[place]["row"]
            handles = [handle_of_insert(table, row)] if kind == INSERT else handles_of_images(table, row, len(images))
            found[place] = list(zip(images, handles, strict=True))
    return found
