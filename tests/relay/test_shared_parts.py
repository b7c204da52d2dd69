"""Transactions that share a commit timestamp are there once, in order, wherever parts are read."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relaykit import window

from sluice.relay import PART_SCHEMA, RelayError, RelayLog, merge, read_parts
from sluice.relay.archive import Archive, write_log
from tests.examples import examples

Key = tuple[int, int, int]
"""commit_ts, start_ts, position"""


def changes(keys: list[Key], row: bytes) -> pa.RecordBatch:
    columns: tuple[Any, ...] = tuple(zip(*keys, strict=True)) or ((), (), ())
    count = len(keys)
    arrays = [
        *columns, [7] * count, [1] * count, [0] * count,
        [b"%s %d/%d/%d" % (row, *key) for key in keys],
    ]  # fmt: skip
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(arrays, PART_SCHEMA, strict=True)],
        PART_SCHEMA,
    )


@st.composite
def parts(draw: st.DrawFn) -> list[list[Key]]:
    """Few commit timestamps, many transactions, some in several parts, as after TiDB's retries."""
    starts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=20, unique=True))
    transactions = [
        (start + draw(st.integers(1, 5)), start, draw(st.integers(1, 3))) for start in starts
    ]
    several = draw(
        st.lists(st.lists(st.sampled_from(transactions), unique=True), min_size=1, max_size=4)
    )
    return [
        sorted((commit, start, n) for commit, start, rows in part for n in range(rows))
        for part in several
    ]


def expected(found: list[list[Key]], row: bytes) -> list[bytes]:
    """Every transaction from the first part that has it, whose number `row` may name."""
    owner: dict[tuple[int, int], int] = {}
    for number, keys in enumerate(found):
        for commit, start, _ in keys:
            owner.setdefault((commit, start), number)
    whole = sorted(
        {
            (key, number)
            for number, keys in enumerate(found)
            for key in keys
            if owner[key[:2]] == number
        }
    )
    return [b"%s %d/%d/%d" % (row.replace(b"#", b"%d" % number), *key) for key, number in whole]


@settings(deadline=None)
@given(parts())
def test_the_merge_has_each_transaction_once_by_commit_and_start(found: list[list[Key]]) -> None:
    tables = [
        pa.Table.from_batches([changes(keys, b"part%d" % i)], PART_SCHEMA)
        for i, keys in enumerate(found)
    ]
    decided = {key[0] for keys in found for key in keys}  # copies aren't compared
    assert merge(tables, decided)["row"].to_pylist() == expected(found, b"part#")


@settings(deadline=None, max_examples=examples(30))
@given(parts(), st.integers(1, 4))
def test_relay_log_and_archive_give_back_the_same(
    found: list[list[Key]], rows_a_batch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = RelayLog.open(f"{Path(folder).as_uri()}/relay")
        written = []
        for number, keys in enumerate(found):
            batches = [keys[i : i + rows_a_batch] for i in range(0, len(keys), rows_a_batch)]
            part = log.write_part(0, 100, "a", number, [changes(each, b"row") for each in batches])
            assert (part.transactions if part else 0) == len({key[:2] for key in keys})
            written += [part] if part else []
        made = window(0, 100, written, is_captured=True)
        log.commit(made)
        assert log.next(0) == made
        assert b'"format":2' in log.storage.read(made.path).replace(b" ", b"")
        assert read_parts(log.url, written)["row"].to_pylist() == expected(found, b"row")
        archive = Archive.open(f"{Path(folder).as_uri()}/archive")
        archive.append(write_log(log.storage, archive.storage, [made], "t").segment())
        (archived,) = archive.log.windows(0)
        assert archived.is_captured
        assert archive.log.read([archived])["row"].to_pylist() == expected(found, b"row")


@pytest.mark.parametrize(
    "keys",
    [
        [(5, 3, 0), (5, 2, 0)],
        [(5, 2, 0), (5, 2, 0)],
        [(5, 2, 1), (5, 2, 0)],
        [(5, 3, 0), (4, 2, 0)],
    ],
)
def test_a_part_in_another_order_is_refused(keys: list[Key], tmp_path: Path) -> None:
    log = RelayLog.open(tmp_path.as_uri())
    for split in (1, 2):
        batches = [
            changes(keys[:split], b"row"),
            *([changes(keys[split:], b"row")] if keys[split:] else []),
        ]
        with pytest.raises(RelayError, match="out of order"):
            log.write_part(0, 10, f"a{split}", 0, batches)
