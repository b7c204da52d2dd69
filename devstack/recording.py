"""Recordings: what a real TiDB cluster sent to its pumps, with what its TiKV and its tables held.

A recording is a folder:

    recording.json         {"name", "cluster_id", ...}; "new_collation_enabled" (true, false) if
                           no row shows it, see sluice.devstack.collations
    binlogs.bin.gz         every binlog.Binlog payload in arrival order, each after its length
                           (unsigned LEB128)
    snapshots.json         [{"label", "ts", "tables": {"schema.table": rows}}], ascending ts
    snapshots/<label>/     the tables as of that ts, see sluice.devstack.compare
    tikv-meta.jsonl.gz     {"key", "value"} in hex a line: TiKV's keys from `m` to `n` at the end
    tikv-txn-status.jsonl  optional: what TiKV knows of transactions whose Commit or Rollback is
                           not in the stream

Everything is read as a stream and checked on the way; whatever is wrong is a RecordingError that
names the file and the place in it.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from sluice.errors import RequestError
from sluice.tidb import pb
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE, ROLLBACK

_MAX_PAYLOAD = 1 << 30
_COPY_AGAIN_HINT = "copy the recording again"


class RecordingError(RequestError, ValueError):
    """A recording that can't be used; the text names file, place and what to do."""

    hint = "use an undamaged recording"


class SnapshotLabel(NamedTuple):
    """A snapshot: every transaction with commit_ts <= `ts` is in it.

    `tables`: rows by `schema.table`.
    """

    name: str
    ts: int
    tables: Mapping[str, int]


class Record(NamedTuple):
    """One payload of the stream.

    `number` counts from 0; `commit_ts` is 0 in a Prewrite and in TiDB's rollbacks.
    """

    number: int
    tp: int
    start_ts: int
    commit_ts: int
    ddl_job_id: int
    payload: bytes
    prewrite_key: bytes = b""

    @property
    def fake(self) -> bool:
        """Return whether it is a pump's own mark of time, written by no transaction."""
        return self.start_ts == self.commit_ts


class TxnWrite(NamedTuple):
    """A record of TiKV's write column: `rollback` or committed at `commit_ts`."""

    rollback: bool
    commit_ts: int
    short_value: bytes = b""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A recorded transaction.

    `commit_ts` is 0 when it was rolled back or its end isn't known; `second` is whether its Commit
    or Rollback is in the stream. `write` is what TiKV knows of it, None if nothing.
    """

    start_ts: int
    commit_ts: int
    prewrite_key: bytes
    ddl_job_id: int
    ddl_schema_state: int
    second: bool
    write: TxnWrite | None


class Recording:
    """A recording folder.

    Raises RecordingError if a file is missing or its small files are unreadable.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise RecordingError(
                f"{self.directory}: no such folder; give the folder of a recording"
            )
        head = self._json("recording.json")
        try:
            self.cluster_id = int(head["cluster_id"])
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingError(
                f"{self._path('recording.json')}: no cluster_id in it; {_COPY_AGAIN_HINT}"
            ) from error
        self.name = str(head.get("name", self.directory.name))
        self.new_collations: bool | None = head.get("new_collation_enabled")
        if self.new_collations is not None and type(self.new_collations) is not bool:
            raise RecordingError(
                f"{self._path('recording.json')}: new_collation_enabled is true or false, not"
                f" {self.new_collations!r}"
            )
        self.labels = self._read_labels()
        for needed in ("binlogs.bin.gz", "tikv-meta.jsonl.gz"):
            self._path(needed)
        if head.get("dropped"):
            self._path("tikv-txn-status.jsonl")
        self._transactions: dict[int, Transaction] | None = None

    def label(self, name: str) -> SnapshotLabel:
        """Return the label called `name`; RecordingError lists those there are."""
        for label in self.labels:
            if label.name == name:
                return label
        known = ", ".join(label.name for label in self.labels) or "none"
        raise RecordingError(
            f"{self._path('snapshots.json')}: no label {name!r}; there are: {known}"
        )

    def resolve(self, until: str | int | None) -> int | None:
        """Return a label's name or a timestamp (a number, also as text) as a timestamp.

        None stays None (everything).
        """
        if until is None or isinstance(until, int):
            return until
        return int(until) if until.isascii() and until.isdigit() else self.label(until).ts

    def records(self, until_ts: int | None = None) -> Iterator[Record]:
        """Yield the records in arrival order.

        With `until_ts`, transactions that committed after it are left out completely, their
        Prewrite too, as are rolled back and undecided ones that began after it; what is left makes
        the snapshot at `until_ts`.
        """
        wanted = self.transactions(until_ts)
        for record, _ in self._stream():
            if record.fake:
                if until_ts is None or record.commit_ts <= until_ts:
                    yield record
            elif record.start_ts in wanted:
                yield record

    def transactions(self, until_ts: int | None = None) -> dict[int, Transaction]:
        """Return all transactions by start_ts, in the order of Prewrites, cut as `records` does.

        Reads the whole stream once and so finds everything that is wrong with it.
        """
        if self._transactions is None:
            self._transactions = self._scan()
        if until_ts is None:
            return self._transactions
        return {
            start: txn
            for start, txn in self._transactions.items()
            if (txn.commit_ts or txn.start_ts) <= until_ts
        }

    def meta_keys(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of every recorded TiKV key.

        Lines that are no JSON objects (log lines) are skipped.
        """
        path = self._path("tikv-meta.jsonl.gz")
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if not line.startswith("{"):
                        continue
                    try:
                        pair = json.loads(line)
                        yield bytes.fromhex(pair["key"]), bytes.fromhex(pair["value"])
                    except (KeyError, TypeError, ValueError) as error:
                        raise RecordingError(
                            f"{path}, line {number}: not a key and a value in hex;"
                            f" {_COPY_AGAIN_HINT}"
                        ) from error
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            raise RecordingError(f"{path}: damaged ({error}); {_COPY_AGAIN_HINT}") from error

    def _scan(self) -> dict[int, Transaction]:
        prewrites: dict[int, pb.binlog.Binlog] = {}
        seconds: dict[int, int] = {}
        for record, message in self._stream():
            if record.fake:
                continue
            if record.tp == PREWRITE:
                message.ClearField("prewrite_value")
                message.ClearField("ddl_query")
                prewrites.setdefault(record.start_ts, message)
            elif record.start_ts not in prewrites:
                kind = "Commit" if record.tp == COMMIT else "Rollback"
                raise RecordingError(
                    f"{self._path('binlogs.bin.gz')}, record {record.number}: the {kind} of"
                    f" transaction {record.start_ts} comes without or before its Prewrite;"
                    f" {_COPY_AGAIN_HINT}"
                )
            else:
                seconds[record.start_ts] = record.commit_ts
        status = self._txn_status()
        found = {}
        for start_ts, message in prewrites.items():
            write = status.get(start_ts)
            if start_ts in seconds:
                commit_ts = seconds[start_ts]
                write = TxnWrite(not commit_ts, commit_ts or start_ts)
            else:
                commit_ts = write.commit_ts if write and not write.rollback else 0
            found[start_ts] = Transaction(
                start_ts,
                commit_ts,
                message.prewrite_key,
                message.ddl_job_id,
                message.ddl_schema_state,
                start_ts in seconds,
                write,
            )
        return found

    def _stream(self) -> Iterator[tuple[Record, pb.binlog.Binlog]]:
        path = self._path("binlogs.bin.gz")
        index = offset = 0
        try:
            with gzip.open(path, "rb") as stream:
                while True:
                    length, used = _read_length(stream)
                    where = f"{path}, record {index} at byte {offset} of the unpacked stream"
                    if used == 0:
                        return
                    if length is None or length > _MAX_PAYLOAD:
                        raise RecordingError(
                            f"{where}: its length is no number of bytes; {_COPY_AGAIN_HINT}"
                        )
                    payload = stream.read(length)
                    if len(payload) < length:
                        raise RecordingError(
                            f"{where}: {length} bytes announced, the stream ends after"
                            f" {len(payload)}; {_COPY_AGAIN_HINT}"
                        )
                    yield _parse(index, payload, where)
                    index += 1
                    offset += used + length
        except (EOFError, OSError, zlib.error) as error:
            raise RecordingError(
                f"{path}, record {index} at byte {offset} of the unpacked stream: damaged or cut"
                f" off ({error}); {_COPY_AGAIN_HINT}"
            ) from error

    def _txn_status(self) -> dict[int, TxnWrite]:
        """Return by start_ts the transactions of which TiKV has a record.

        They are those whose second record is missing.
        """
        path = self.directory / "tikv-txn-status.jsonl"
        found: dict[int, TxnWrite] = {}
        if not path.exists():
            return found
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    entry = json.loads(line)
                    start_ts = int(entry["start_ts"])
                    for write in entry["mvcc"].get("writes") or ():
                        if int(write["start_ts"]) == start_ts:
                            value = base64.b64decode(write.get("short_value") or "")
                            found[start_ts] = TxnWrite(
                                write.get("type") == 3, int(write["commit_ts"]), value
                            )
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise RecordingError(
                        f"{path}, line {number}: not the status of a transaction;"
                        f" {_COPY_AGAIN_HINT}"
                    ) from error
        return found

    def _read_labels(self) -> list[SnapshotLabel]:
        entries = self._json("snapshots.json")
        try:
            labels = [
                SnapshotLabel(
                    str(e["label"]), int(e["ts"]), {t: int(n) for t, n in e["tables"].items()}
                )
                for e in entries
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordingError(
                f"{self._path('snapshots.json')}: not a list of label, ts and tables;"
                f" {_COPY_AGAIN_HINT}"
            ) from error
        return sorted(labels, key=lambda label: label.ts)

    def _json(self, name: str) -> Any:
        path = self._path(name)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordingError(
                f"{path}: not readable as JSON ({error}); {_COPY_AGAIN_HINT}"
            ) from error

    def _path(self, name: str) -> Path:
        path = self.directory / name
        if not path.is_file():
            raise RecordingError(
                f"{path}: missing; a recording has recording.json, binlogs.bin.gz, snapshots.json,"
                " tikv-meta.jsonl.gz, and tikv-txn-status.jsonl if records were dropped;"
                f" {_COPY_AGAIN_HINT}"
            )
        return path


def _read_length(stream: gzip.GzipFile) -> tuple[int | None, int]:
    """Read a LEB128 number, and return it with how many bytes it took.

    (0, 0) at the end of the stream, None if it is no number.
    """
    value = 0
    for used in range(10):
        byte = stream.read(1)
        if not byte:
            return (None, used) if used else (0, 0)
        value |= (byte[0] & 0x7F) << (7 * used)
        if byte[0] < 0x80:
            return value, used + 1
    return None, 10


def _parse(index: int, payload: bytes, where: str) -> tuple[Record, pb.binlog.Binlog]:
    try:
        message = pb.binlog.Binlog.FromString(payload)
    except DecodeError as error:
        raise RecordingError(
            f"{where}: {len(payload)} bytes that are no Binlog ({error}); {_COPY_AGAIN_HINT}"
        ) from error
    tp, start_ts, commit_ts = message.tp, message.start_ts, message.commit_ts
    sound = message.HasField("tp") and start_ts > 0 and tp in (PREWRITE, COMMIT, ROLLBACK)
    if sound and tp == PREWRITE:
        sound = commit_ts == 0
    elif sound and tp == COMMIT:
        sound = commit_ts > start_ts
    elif sound:
        sound = commit_ts in (0, start_ts)
    if not sound:
        raise RecordingError(
            f"{where}: {len(payload)} bytes that are no Binlog (type {tp}, start_ts {start_ts}, "
            f"commit_ts {commit_ts}); {_COPY_AGAIN_HINT}"
        )
    return (
        Record(index, tp, start_ts, commit_ts, message.ddl_job_id, payload, message.prewrite_key),
        message,
    )
