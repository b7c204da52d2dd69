"""A relay log from a recording, without pump, PD and Spark: what landing would have written."""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa

from sluice.devstack.collations import shown_new_collations
from sluice.devstack.tidb.row_writes import RowWrites
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._job import TableSpan
from sluice.etl.landing._second_writes import DuplicateWrites
from sluice.etl.landing._window_rows import WindowRows
from sluice.etl.landing.definitions_used import DefinitionResolver, ReadVersions
from sluice.etl.landing.extract import RowExtractor
from sluice.etl.landing.extract.captured_parts import is_captured
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.schema_rebuild import SchemaRebuilder, late_jobs
from sluice.etl.landing.upstream_schema import PendingVersion
from sluice.relay import RelayLog, WindowRecord
from sluice.tidb import TiKVError, pb, read_schema_version
from sluice.tidb.history import SchemaHistory
from sluice.tidb.partitions import physical_ids
from sluice.tidb.schema import Table
from sluice.tidb.tikv import Mvcc, MvccWrite
from sluice.tidb.tikv.meta import read_ddl_jobs, string_key
from sluice.tidb.window_schema import WINDOW_SCHEMA

RECORDINGS = Path(__file__).parents[1] / "recordings"
_HISTORY_PREFIX = "6d44444c4a6f624869ff73746f7279"
_PUMPS = 3
_TABLES_PREFIX = b"mDB:"
ROW_WRITES = "row-writes.jsonl.gz"
"""Name of the file in which an invented recording keeps TiKV's writes of rows in partitions."""
_RESTARTS = 0.3
"""How likely landing is to begin again before a window."""
_T = TypeVar("_T")


def _once(read: Callable[[Path], _T]) -> Callable[[Path], _T]:
    """Recordings of the tests, which nobody changes, are read once a process: what is read must not
    be changed.
    """
    kept = functools.cache(read)
    return functools.wraps(read)(
        lambda folder: kept(folder) if folder.parent == RECORDINGS else read(folder)
    )


def binlogs(folder: Path) -> Iterator[Any]:
    """Every Binlog message of a recording, in order of arrival, with its bytes."""
    data = gzip.decompress((folder / "binlogs.bin.gz").read_bytes())
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield pb.binlog.Binlog.FromString(data[at : at + size]), data[at : at + size]
        at += size


@_once
def committed(folder: Path) -> tuple[tuple[int, int, bytes], ...]:
    """(commit_ts, start_ts, Prewrite payload) of every committed transaction, ascending.

    A Prewrite that was captured has its commit_ts.
    """
    prewrites, commits, captured = {}, {}, []
    for binlog, payload in binlogs(folder):
        if binlog.tp == 0 and binlog.commit_ts:
            captured.append((binlog.commit_ts, binlog.start_ts, payload))
        elif binlog.tp == 0:
            prewrites[binlog.start_ts] = payload
        elif binlog.tp == 1:
            commits[binlog.start_ts] = binlog.commit_ts
    found = [(commit_ts, start_ts, prewrites[start_ts]) for start_ts, commit_ts in commits.items()]
    return tuple(sorted(found + captured))


def jobs(folder: Path) -> dict[int, dict[str, Any]]:
    """DDL jobs by id, as TiKV keeps them."""
    found = {}
    with gzip.open(folder / "tikv-meta.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith(("{", '["')):
                continue
            pair = json.loads(line)
            key, value = pair if isinstance(pair, list) else list(pair.values())[:2]
            if key.startswith(_HISTORY_PREFIX):
                raw = json.loads(bytes.fromhex(value))
                found[int(raw["id"])] = raw
    return found


@_once
def _meta_values(folder: Path) -> Mapping[bytes, bytes]:
    """By key, in their order."""
    values: dict[bytes, bytes] = {}
    with gzip.open(folder / "tikv-meta.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(("{", '["')):
                pair = json.loads(line)
                key, value = pair if isinstance(pair, list) else list(pair.values())[:2]
                values[bytes.fromhex(key)] = bytes.fromhex(value)
    return MappingProxyType(dict(sorted(values.items())))


class MetaKeys:
    """TiDB's meta keys of a recording, as they were at its end, in place of TiKV and PD."""

    def __init__(self, folder: Path) -> None:
        self._values = _meta_values(folder)
        self._versions: list[tuple[int, int]] = json.loads(
            (folder / "recording.json").read_text()
        ).get("versions", [])
        """Schema versions with the TSO from which on they were there, where a recording says so."""

    def get(self, key: bytes, ts: int) -> bytes | None:
        if ts < self.tso() and key.startswith(_TABLES_PREFIX):
            raise TiKVError("what tables were is collected")
        if key == string_key("SchemaVersionKey") and ts < self.tso():
            known = [version for version, since in self._versions if since <= ts]
            return str(max(known)).encode() if known else None
        return self._values.get(key)

    def scan(
        self, start: bytes, end: bytes, ts: int, limit: int = 256, *, keys_only: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value) for key, value in self._values.items() if start <= key < end)

    def tso(self) -> int:
        return 1 << 62

    def physical_ids(self, table: Table) -> set[int]:
        """Every id that rows of a table had, by all jobs."""
        infos = [
            document["binlog"].get("TableInfo") for document in read_ddl_jobs(self, self.tso())
        ]  # type: ignore[arg-type]
        tables = [
            Table.from_tidb(info, 1, "")
            for info in infos
            if info is not None and info["id"] == table.id
        ]
        return {table.id}.union(*map(physical_ids, tables))


@_once
def _has_old_collations(folder: Path) -> bool:
    """As the stand-in TiKV says it is, which isn't there."""
    shown = shown_new_collations(
        _meta_values(folder).items(), (payload for _, payload in binlogs(folder))
    )
    said = json.loads((folder / "recording.json").read_text()).get("new_collation_enabled")
    return False in (shown, said)


def _batch(transactions: Sequence[tuple[int, int, bytes]]) -> pa.RecordBatch:
    columns = [
        pa.array([row[at] for row in transactions], kind)
        for at, kind in enumerate((pa.int64(), pa.int64(), pa.large_binary()))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WINDOW_SCHEMA)


def _held(
    transactions: Sequence[tuple[int, int, bytes]], rng: random.Random
) -> Sequence[Sequence[tuple[int, int, bytes]]]:
    """What each of some pumps has of them: mostly one of them, now and then two after TiDB tried
    again.
    """
    pumps: list[list[tuple[int, int, bytes]]] = [[] for _ in range(_PUMPS)]
    for row in transactions:
        for number in rng.sample(range(_PUMPS), rng.choice((1, 1, 1, 2))):
            pumps[number].append(row)
    return pumps


def _begun_again(relay: RelayLog, meta: Any, old_collations: bool) -> LandingSchema | None:
    """The schema that landing begins with behind the last window."""
    last = relay.last()
    if last is None:
        return None
    then = SchemaRebuilder(meta, meta.tso(), old_collations=old_collations)

    def has_landed(job_id: int, since_ts: int) -> bool:
        return any(
            int(ddl["job_id"]) == job_id for window in relay.windows(0) for ddl in window.ddls
        )

    first = relay.first()
    assert first is not None
    found, known, reorganized = then.at_version(
        last.schema_version, None, late_jobs(first.lo, has_landed), last.hi
    )
    return LandingSchema(
        found,
        meta,
        meta,
        last.relaxed,
        known,
        lambda early: then.without(last.schema_version, early),
        has_landed,
        dict.fromkeys(reorganized, False) | RecordedSchema.from_window(last).doubled,
    )


def _row_writes(folder: Path) -> Mapping[bytes, list[MvccWrite]]:
    """Return TiKV's writes of rows in partitions by key: those that the recording keeps, or the
    stand-in TiKV's.
    """
    found = defaultdict[bytes, list[MvccWrite]](list)
    if (folder / ROW_WRITES).exists():
        with gzip.open(folder / ROW_WRITES, "rt", encoding="utf-8") as lines:
            for entry in map(json.loads, lines):
                found[bytes.fromhex(entry["key"])] = [
                    MvccWrite(*write) for write in entry["writes"]
                ]
        return found
    rows = RowWrites(_meta_values(folder).items())
    for commit_ts, start_ts, payload in committed(folder):
        for key in rows.commit(rows.images(payload)):
            found[key].append(MvccWrite(0, start_ts, commit_ts))
    return found


def asked_of(folder: Path) -> ReadVersions:
    """Return what answers, in TiKV's place, about rows in partitions of a recording."""
    writes = functools.cache(lambda: _row_writes(folder))
    return lambda keys: {key: Mvcc(None, tuple(writes().get(key, ()))) for key in keys}


def pending_version(tikv: Any, ts: int) -> PendingVersion:
    """Return a read of the schema version as of a TSO that is over."""
    version = read_schema_version(tikv, ts)
    return PendingVersion(ts, lambda: version)


def land(
    folder: Path,
    url: str,
    transactions: int = 1000,
    through: int | None = None,
    cluster_id: int = 7,
    spread: random.Random | None = None,
    until: int = 0,
) -> RelayLog:
    """Write the windows of a recording, `transactions` each, to the relay log at `url`.

    `spread`: over the parts of several pumps, of which two may have the same transaction.

    `until`: the last window ends there, or behind it.
    """
    relay = RelayLog.open(url)
    rows = [row for row in committed(folder) if through is None or row[0] <= through]
    meta: Any = MetaKeys(folder)
    history = SchemaHistory()
    if _has_old_collations(folder):
        history.use_old_collations()
    landing = LandingSchema(history, meta, meta)
    restarts = random.Random(spread.random()) if spread is not None else None
    definitions = DefinitionResolver(relay, asked_of(folder), lambda: 0)
    second_writes = DuplicateWrites(relay, asked_of(folder))
    lo = rows[0][0] - 1
    for first in range(0, len(rows), transactions):
        if restarts is not None and restarts.random() < _RESTARTS:
            landing = _begun_again(relay, meta, history.has_old_collations) or landing
        chosen = rows[first : first + transactions]
        is_last = first + transactions >= len(rows)
        hi = max(chosen[-1][0], until) if is_last else chosen[-1][0]
        exploder = RowExtractor("recording")
        was_captured = is_captured(_batch(chosen))
        whole = list(exploder.extract(_batch(chosen)))
        pumps = (
            [whole]
            if spread is None or was_captured
            else [list(RowExtractor().extract(_batch(some))) for some in _held(chosen, spread)]
        )
        written = [
            relay.write_part(lo, hi, "test", number, batches)
            for number, batches in enumerate(pumps)
        ]
        totals = exploder.totals
        spans = {
            i: TableSpan(
                t.rows, t.first_commit_ts, t.last_commit_ts, t.oldest_version, t.newest_version
            )
            for i, t in totals.by_table.tables().items()
        }
        schema = landing.resolve(
            totals.ddls,
            spans,
            lambda _: True,
            (),
            WindowRows(lambda whole=whole: whole),
            pending_version(meta, hi),
        )
        parts = tuple(part for part in written if part is not None)
        differ = set[int]()
        if not was_captured:
            parts, differ = second_writes.drop_copies(
                parts,
                landing.written_twice,
                schema,
                lambda table, *_: meta.physical_ids(table),
                (lo, hi, "test"),
            )
        schema = landing.with_doubled(schema, differ)
        moves = landing.recent_moves(schema, spans)
        schema, parts = definitions.resolve(
            schema,
            moves,
            parts,
            (lo, hi, "test"),
            (),
            landing.definitions_to_come,
            is_captured=was_captured,
        )
        window = WindowRecord(
            lo,
            hi,
            cluster_id,
            "test",
            0,
            totals.transactions,
            totals.changes,
            schema.schema_version,
            parts,
            is_captured=was_captured,
        )
        relay.commit(schema.write_to(window))
        lo = hi
    return relay
