"""What the store's tests share: making binlogs, waiting for the disk, and the right answer for a
list of records.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import shutil
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import google_crc32c

from sluice.pump_service.store import IndexOptions, Record, Store, StoreOptions
from sluice.pump_service.store.binlog_head import encode_outcome, parse_head
from sluice.tidb import pb

RECORDINGS = Path(__file__).parents[1] / "recordings"
BASE = 470_614_549_921_792_019
_TURN = itertools.count()

# The tests' disks may be fuller than an operator's; what happens then has its own tests.
OPTIONS = StoreOptions(stop_write_at_available_space=0, kv=IndexOptions(write_buffer=1 << 20))


def prewrite(start: int, value: bytes = b"value", key: bytes = b"key") -> Record:
    """A Prewrite as TiDB's encoder writes it."""
    message = pb.binlog.Binlog(
        tp=0,
        start_ts=start,
        commit_ts=0,
        prewrite_key=key,
        prewrite_value=value,
        ddl_job_id=0,
        ddl_schema_state=0,
    )
    return Record(0, start, 0, message.SerializeToString())


def commit(start: int, commit_ts: int, key: bytes = b"key") -> Record:
    """A Commit as TiDB's encoder writes it."""
    message = pb.binlog.Binlog(
        tp=1,
        start_ts=start,
        commit_ts=commit_ts,
        prewrite_key=key,
        ddl_job_id=0,
        ddl_schema_state=0,
    )
    return Record(1, start, commit_ts, message.SerializeToString())


def rollback(start: int) -> Record:
    """A Rollback of TiDB's: without commit_ts."""
    return Record(2, start, 0, encode_outcome(2, start, 0))


def fake(ts: int) -> Record:
    """A fake binlog."""
    return Record(2, ts, ts, encode_outcome(2, ts, ts))


def write(store: Store, *records: Record, timeout: float = 60) -> None:
    """Submits the records together and waits until they are durable.

    Raises what the store answers.
    """
    answer = Answer()
    # By turns by way of the writer's thread and, as a sole caller's are, in this one.
    store.submit(records, answer, here=next(_TURN) % 2 == 0)
    if not answer.done.wait(timeout):
        raise TimeoutError("the store did not answer")
    if answer.error is not None:
        raise answer.error


class Answer:
    """What `done` was called with."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.calls = 0

    def __call__(self, error: BaseException | None) -> None:
        self.error = error
        self.calls += 1
        self.done.set()


class MemoryStore:
    """Takes records as a captured store does, and keeps them."""

    def __init__(self, max_commit_ts: int = 0) -> None:
        self.records: list[Record] = []
        self.max_commit_ts = max_commit_ts

    def submit(
        self, records: Sequence[Record], done: Callable[[BaseException | None], None]
    ) -> None:
        self.records += records
        self.max_commit_ts = max(
            [self.max_commit_ts, *(r.commit_ts for r in records if r.start_ts == r.commit_ts)]
        )
        done(None)


def start_write(store: Store, *records: Record) -> Answer:
    answer = Answer()
    store.submit(records, answer)
    return answer


def settle(store: Store, ts: int = BASE + (1 << 40), timeout: float = 60) -> int:
    """Waits until everything written so far has passed the sorter, if nothing is open."""
    return store.barrier(ts, timeout)


def eventually(condition: Callable[[], bool], timeout: float = 60) -> None:
    """Waits until something is so."""
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


@contextlib.contextmanager
def stalled_index(store: Store) -> Iterator[None]:
    """The index takes nothing until the end of the block, as if LevelDB stood still."""
    index, go_on = store._index, threading.Event()
    originals = {name: getattr(index, name) for name in ("put_batch", "put_arrays")}

    def held(name: str) -> Callable[..., None]:
        def put(*columns: object) -> None:
            assert go_on.wait(120)
            originals[name](*columns)

        return put

    for name in originals:
        setattr(index, name, held(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(index, name, original)
        go_on.set()


def window(store: Store, lo: int = 0, hi: int | None = None) -> list[tuple[int, int, bytes]]:
    """(commit_ts, start_ts, payload) of a window, read as batches."""
    rows = []
    for batch in store.read_window(lo, store.max_commit_ts if hi is None else hi):
        columns = batch.to_pydict()
        rows += list(
            zip(columns["commit_ts"], columns["start_ts"], columns["payload"], strict=True)
        )
    return rows


def pulled(store: Store, through: int, after: int = 0) -> list[tuple[int, int, bytes]]:
    """(commit_ts, start_ts, payload) of what `pull` gives up to and including `through`."""
    stop = threading.Event()
    rows = []
    for entity in store.pull(after, stop):
        rows.append((entity.commit_ts, entity.start_ts, entity.payload))
        if entity.commit_ts >= through:
            stop.set()
    return rows


def paired(records: Iterable[Record]) -> list[tuple[int, int, bytes]]:
    """The right answer: Commits joined with their Prewrites, in the order of commit_ts."""
    records = list(records)
    prewrites = {r.start_ts: r.payload for r in records if r.tp == 0}
    commits = {r.commit_ts: r.start_ts for r in records if r.tp == 1 and r.commit_ts != r.start_ts}
    return [
        (ts, commits[ts], prewrites[commits[ts]])
        for ts in sorted(commits)
        if commits[ts] in prewrites
    ]


def recorded(name: str) -> Iterator[Record]:
    """The records of a recording in arrival order."""
    data = gzip.decompress((RECORDINGS / name / "binlogs.bin.gz").read_bytes())
    pos = 0
    while pos < len(data):
        size = shift = 0
        while True:
            byte = data[pos]
            pos += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        payload = data[pos : pos + size]
        pos += size
        yield Record(*parse_head(payload), payload)


def transactions(count: int, first: int = 0, value: bytes = b"value") -> list[Record]:
    """Transactions that overlap: P1 P2 C1 P3 C2 …"""
    records = [prewrite(BASE + 100 * first, b"%d" % first + value)]
    for i in range(first, first + count):
        if i + 1 < first + count:
            records.append(prewrite(BASE + 100 * (i + 1), b"%d" % (i + 1) + value))
        records.append(commit(BASE + 100 * i, BASE + 100 * i + 150))
    return records


def restore(name: str, tmp_path: Path) -> Path:
    with tarfile.open(RECORDINGS / name / "pump-data-dir.tgz") as tar:
        tar.extractall(tmp_path)
    return tmp_path / "pump"


def vlog_records(data_dir: Path) -> list[Record]:
    """Every record of a data directory in the order of its value log, read as the format says and
    without the store.
    """
    records = []
    for path in sorted((data_dir / "value").glob("*.vlog")):
        data = path.read_bytes()
        if data[-4:] == (305838370).to_bytes(4, "little"):
            data = data[:-12]
        pos = 0
        while pos < len(data):
            magic, size, crc = struct.unpack_from("<IQI", data, pos)
            payload = data[pos + 16 : pos + 16 + size]
            assert (magic, len(payload), google_crc32c.value(payload)) == (0x823A56E8, size, crc)
            binlog = pb.binlog.Binlog.FromString(payload)
            records.append(Record(binlog.tp, binlog.start_ts, binlog.commit_ts, payload))
            pos += 16 + size
    return records


def copy_live(source: Path, target: Path) -> None:
    """Copies a database in use: again, if LevelDB has replaced files meanwhile."""
    while True:
        before = sorted(source.iterdir())
        with contextlib.suppress(shutil.Error):
            shutil.copytree(source, target)
            if sorted(source.iterdir()) == before:
                return
        shutil.rmtree(target, ignore_errors=True)
