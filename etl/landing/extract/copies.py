"""Find transactions that several pumps sent, and compare what each of them sent.

TiDB writes a Prewrite to a second pump when the first one's answer is late. Both then have the
same bytes. Of a small window the worker has the binlogs of all pumps, and compares those. Of a
large one each range becomes a part of its own. Its statistics then name the transactions that it
read, also those without rows, and landing compares the rows of those that two pumps have.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.landing.extract.row_extractor import BinlogDecodeError
from sluice.relay import PART_SCHEMA, CopiesDifferError, Part, RelayLog, iter_parts, merge
from sluice.relay.storage import Storage

_KEY = np.dtype([("commit_ts", "<i8"), ("start_ts", "<i8")])
Keys = npt.NDArray[np.void]

_rewritten = itertools.count()


def copies_differ(hosts: Sequence[str], commit_ts: int, start_ts: int) -> BinlogDecodeError:
    """Return the error of a transaction of which two pumps have different changes."""
    return BinlogDecodeError(
        f"pumps {hosts[0]} and {hosts[1]} hold different changes of transaction {start_ts},"
        f" commit_ts {commit_ts}: two Prewrites with one start_ts were sent, and TiDB sends none",
        hint=(
            f"`sluice txn skip {commit_ts}` leaves the transaction out; bring its rows with"
            " `sluice verify --repair --apply`, and look for the client that wrote to the pumps"
        ),
    )


def keys_of(rows: pa.RecordBatch | pa.Table) -> Keys:
    """Return commit_ts and start_ts of each row."""
    keys = np.empty(rows.num_rows, _KEY)
    for name in _KEY.names or ():
        keys[name] = rows[name].to_numpy()
    return keys


def encode_keys(keys: Sequence[Keys]) -> str:
    """Return keys as the text that is in a worker's statistics."""
    return base64.b64encode(b"".join(each.tobytes() for each in keys)).decode()


@dataclass(frozen=True, slots=True)
class SharedTransactions:
    """Transactions that two ranges of a window, of different pumps, have both read."""

    hosts: tuple[str, str]
    parts: tuple[Part | None, Part | None]
    """The parts of the ranges; None of one without rows."""
    keys: Keys


def shared_transactions(
    tasks: Sequence[Mapping[str, Any]], answers: Sequence[dict[str, Any]]
) -> tuple[SharedTransactions, ...]:
    """Return what two pumps have both sent, by the workers' statistics.

    DDL are compared here. That of a transaction to be skipped stays in the first statistics that
    have the transaction. Raises BinlogDecodeError.
    """
    found = []
    ranges = [(answer, answer["keys"]) for answer in answers if answer.get("keys")]
    for (one, keys), (other, others) in itertools.combinations(ranges, 2):
        hosts = tasks[one["n"]]["host"], tasks[other["n"]]["host"]
        if hosts[0] == hosts[1]:
            continue
        shared = np.intersect1d(_decode_keys(keys), _decode_keys(others))
        if not len(shared):
            continue
        known = set(map(tuple, shared.tolist()))
        first, second = (
            {key: ddl for ddl in each["ddls"] if (key := _key_of(ddl)) in known}
            for each in (one, other)
        )
        for key in sorted(first.keys() | second.keys()):
            if first.get(key) != second.get(key) and key[0] not in tasks[one["n"]]["skips"]:
                raise copies_differ(hosts, *key)
        other["ddls"] = [ddl for ddl in other["ddls"] if _key_of(ddl) not in known]
        found.append(SharedTransactions(hosts, (_part_of(one), _part_of(other)), shared))
    return tuple(found)


def _decode_keys(text: str) -> Keys:
    return np.frombuffer(base64.b64decode(text), _KEY)


def _part_of(answer: Mapping[str, Any]) -> Part | None:
    return Part.from_dict(answer["part"]) if answer["part"] else None


def _key_of(ddl: Mapping[str, Any]) -> tuple[int, int]:
    return ddl["commit_ts"], ddl["start_ts"]


def settle_copies(
    relay: RelayLog,
    shared: Sequence[SharedTransactions],
    parts: Sequence[Part],
    bounds: tuple[int, int, str],
    skips: Collection[int],
) -> tuple[Part, ...]:
    """Return the parts of a window once the copies of each transaction are equal.

    `bounds`: lo and hi (TSO) of the window and a token for new parts. Of transactions committed at
    `skips` (TSOs) copies may differ: the first one stays. Raises BinlogDecodeError, relay errors.
    """
    settled: dict[str, Part | None] = {part.path: part for part in parts}
    for each in shared:
        tables = [_rows_of(relay.storage, part, each.keys) for part in each.parts]
        only_one = np.setxor1d(_keys_in(tables[0]), _keys_in(tables[1]))
        for commit_ts, start_ts in only_one.tolist():
            if commit_ts not in skips:
                raise copies_differ(each.hosts, commit_ts, start_ts)
        try:
            merge(tables, skips)
        except CopiesDifferError as differ:
            raise copies_differ(each.hosts, differ.commit_ts, differ.start_ts) from None
        decided = each.keys[np.isin(each.keys["commit_ts"], list(skips))]
        second = each.parts[1]
        kept = settled.get(second.path) if second is not None else None
        if len(decided) and second is not None and kept is not None:
            batches = [
                batch.filter(pc.invert(pa.array(_is_among(batch, decided))))
                for batch in iter_parts(relay.storage, (kept,))
            ]
            lo, hi, token = bounds
            own = f"{token}.first{next(_rewritten)}"
            settled[second.path] = relay.write_part(lo, hi, own, 0, batches)
    return tuple(part for part in settled.values() if part is not None)


def _rows_of(storage: Storage, part: Part | None, keys: Keys) -> pa.Table:
    batches = iter_parts(storage, (part,)) if part is not None else ()
    return pa.Table.from_batches(
        [batch.filter(pa.array(_is_among(batch, keys))) for batch in batches], PART_SCHEMA
    )


def _is_among(batch: pa.RecordBatch, keys: Keys) -> npt.NDArray[np.bool_]:
    return np.isin(keys_of(batch), keys)


def _keys_in(table: pa.Table) -> Keys:
    return np.unique(keys_of(table))
