"""Read the recordings of TiKV's change data, tests/change_recordings, and match them in the
plainest way.

All recordings are of one cluster, in which `08-scan-from-start` has everything from the first
transaction on. The matcher takes all events at once, so it needs no order, no state and no
frontier.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sluice.pump_service.capture.transactions import CapturedTransaction, KeyChange
from sluice.tidb import pb

FOLDER = Path(__file__).parent / "change_recordings"
NAMES = sorted(path.name.removesuffix(".cdc.gz") for path in FOLDER.glob("*.cdc.gz"))
WHOLE_HISTORY = "08-scan-from-start"
_HEAD = struct.Struct(">IcQI")
_PREWRITE, _COMMIT, _COMMITTED, _DELETE = 1, 2, 4, 2


class Record(NamedTuple):
    """Hold one record: kind `Q` (request), `E` (event), `X` (end of a stream) or `M` (mark)."""

    kind: str
    time_us: int
    stream: int
    payload: bytes

    @property
    def mark(self) -> dict[str, Any]:
        """Return the JSON object of a mark or an end."""
        return dict(json.loads(self.payload))


class Snapshot(NamedTuple):
    """Hold what TiDB showed at a TSO: rows by table id, each a list of values as text, and the
    tables' names.
    """

    label: str
    tso: int
    rows: dict[int, list[list[Any]]]
    names: dict[int, str]


def read(name: str) -> Iterator[Record]:
    """Yield the records of a recording in order."""
    data, pos = gzip.decompress((FOLDER / f"{name}.cdc.gz").read_bytes()), 0
    while pos < len(data):
        size, kind, time_us, stream = _HEAD.unpack_from(data, pos)
        yield Record(kind.decode(), time_us, stream, data[pos + _HEAD.size : pos + 4 + size])
        pos += 4 + size


def checkpoint_ts(name: str) -> int:
    """Return the TSO from which on the recording has everything."""
    return int(next(each.mark for each in read(name) if each.kind == "M")["checkpoint_ts"])


@cache
def transactions(name: str) -> list[CapturedTransaction]:
    """Return all committed transactions, by commit_ts and start_ts; of index keys nothing."""
    prewrites: dict[tuple[int, bytes], Any] = {}
    commits: dict[tuple[int, int, bytes], Any] = {}
    for each in read(name):
        if each.kind != "E":
            continue
        for event in pb.cdc.ChangeDataEvent.FromString(each.payload).events:
            for row in event.entries.entries:
                if row.type == _PREWRITE:
                    prewrites[row.start_ts, row.key] = row
                elif row.type == _COMMITTED:
                    commits[row.commit_ts, row.start_ts, row.key] = row
                elif row.type == _COMMIT:
                    commits.setdefault((row.commit_ts, row.start_ts, row.key), None)
    found: dict[tuple[int, int], list[KeyChange]] = defaultdict(list)
    for (commit_ts, start_ts, key), row in sorted(commits.items(), key=lambda item: item[0]):
        if key[:1] == b"t" and key[9:11] == b"_i":
            continue
        source = prewrites[start_ts, key] if row is None else row
        is_delete = source.op_type == _DELETE
        found[commit_ts, start_ts].append(KeyChange(key, source.value, source.old_value, is_delete))
    return [
        CapturedTransaction(start, commit, 0, changes)
        for (commit, start), changes in sorted(found.items())
    ]


def history_through(ts: int) -> list[CapturedTransaction]:
    """Return the cluster's transactions from its first on."""
    return [each for each in transactions(WHOLE_HISTORY) if each.commit_ts <= ts]


@cache
def snapshots(name: str) -> list[Snapshot]:
    """Return the snapshots of a recording, ascending."""
    found: list[Snapshot] = []
    ids: dict[tuple[str, str], int] = {}
    with gzip.open(FOLDER / f"{name}.snap.jsonl.gz", "rt") as lines:
        for line in lines:
            each = json.loads(line)
            if each["kind"] == "snapshot":
                found.append(Snapshot(each["label"], int(each["tso"]), {}, {}))
                ids = {}
            elif each["kind"] == "table" and each["type"] == "BASE TABLE":
                name_of = f"{each['db']}.{each['table']}"
                table_id = int(each["id"])
                if name_of in found[-1].names.values():
                    # TiDB's list of tables is of now: a table that was truncated since is there
                    # twice.
                    table_id = next(i for i, other in found[-1].names.items() if other == name_of)
                    del found[-1].names[table_id], found[-1].rows[table_id]
                    ids.pop((each["db"], each["table"]))
                    continue
                found[-1].rows[table_id] = []
                found[-1].names[table_id] = name_of
                ids[each["db"], each["table"]] = table_id
            elif each["kind"] == "row" and (each["db"], each["table"]) in ids:
                found[-1].rows[ids[each["db"], each["table"]]].append(each["values"])
    return found
