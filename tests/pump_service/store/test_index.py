"""The index: the original's keys and values, and LevelDB files that both implementations read."""

from __future__ import annotations

import struct
import tarfile
import threading
from pathlib import Path

import numpy as np
import plyvel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.store.index import BinlogIndex, encode_key
from sluice.pump_service.store.index_position import IndexPosition
from sluice.pump_service.store.options import IndexOptions
from sluice.pump_service.store.segment import RecordPointer
from tests.examples import examples
from tests.pump_service.leveldb_files import read_database
from tests.pump_service.storekit import restore

RECORDINGS = Path(__file__).parents[2] / "recordings"
TS = 470_614_549_921_792_019


def raw(path: Path) -> dict[bytes, bytes]:
    with plyvel.DB(str(path)) as db:
        return dict(db)


def test_keys_and_values_are_the_originals(tmp_path: Path) -> None:
    index = BinlogIndex(tmp_path / "kv", IndexOptions())
    index.put_batch(3, [0, 1, 2], [TS, TS, TS + 9], [0, TS + 1, 0], [16, 1 << 33, 77])
    index.save_handled(RecordPointer(3, 1 << 33), TS + 1)
    index.save_gc_ts(5)
    index.close()
    assert raw(tmp_path / "kv") == {
        b"ts:" + struct.pack(">Q", TS): struct.pack("<Iq", 3, 16),
        b"ts:" + struct.pack(">Q", TS + 1): struct.pack("<Iq", 3, 1 << 33),
        b"ts:" + bytes(8): struct.pack("<Iq", 3, 77),
        b"!binlog!headPointer": struct.pack("<Iq", 3, 77),
        b"!binlog!handlePointer": struct.pack("<Iq", 3, 1 << 33),
        b"!binlog!maxCommitTS": struct.pack("<Q", TS + 1),
        b"!binlog!gcts": struct.pack("<Q", 5),
        b"~sluice!end": b"",
    }


def test_a_new_index_stands_at_zero(tmp_path: Path) -> None:
    index = BinlogIndex(tmp_path / "kv", IndexOptions())
    assert index.was_rebuilt
    assert index.gc_ts() == 0
    assert index.position() == IndexPosition(RecordPointer(0, 0), RecordPointer(0, 0), 0, {})


@pytest.mark.parametrize("name", ["types", "ddl", "orphans"])
def test_a_real_pumps_goleveldb_opens_and_keeps_all_it_had(name: str, tmp_path: Path) -> None:
    with tarfile.open(RECORDINGS / name / "pump-data-dir.tgz") as tar:
        tar.extractall(tmp_path)
    path = tmp_path / "pump" / "kv"
    index = BinlogIndex(path, IndexOptions())
    assert not index.was_rebuilt
    size = (path.parent / "value" / "000000.vlog").stat().st_size
    standing = index.position()
    assert standing.max_commit_ts > TS - (1 << 50)
    assert 0 < standing.head.offset < size
    assert index.get(standing.max_commit_ts) == standing.handled
    keys, fids, offsets = index.range(0, 1 << 62, 1 << 20)
    assert len(keys) > 100
    assert (keys[1:] > keys[:-1]).all()
    assert set(fids.tolist()) == {0}
    assert len(set(offsets.tolist())) == len(offsets)
    assert [o.tolist() for o in index.pointers(0, 1 << 62, 1 << 20)] == [
        fids.tolist(),
        offsets.tolist(),
    ]


def test_what_is_written_is_what_goleveldb_expects_on_disk(tmp_path: Path) -> None:
    """Read back without LevelDB, by the rules that goleveldb holds files to."""
    path = tmp_path / "kv"
    options = IndexOptions(write_buffer=1 << 16, compaction_table_size=1 << 20)
    index = BinlogIndex(path, options)
    count = 20_000
    for first in range(0, count, 1000):
        numbers = range(first, first + 1000)
        index.put_batch(
            2, [0] * 1000, [TS + i for i in numbers], [0] * 1000, [i << 20 for i in numbers]
        )
    fids = np.zeros(500, np.int64)
    index.put_arrays(3, fids + 1, fids, np.arange(500) + TS + count, np.arange(500) * 77)
    index.save_handled(RecordPointer(2, 5), TS + 9, {7: 3})
    index.close()
    index = BinlogIndex(path, options)  # the journal becomes a table
    index.delete_through(TS + 4999, RecordPointer(9, 0), threading.Event())
    index.save_gc_ts(7)
    index.close()
    found = read_database(path)
    assert found.comparator == "leveldb.BytewiseComparator"
    assert len(found.tables) > 1
    assert len(set(found.tables.values())) > 1  # compacted, too
    assert set(found.blocks) <= {0, 1}
    assert found.entries == raw(path)
    pointers = {TS + i: (2, i << 20) for i in range(5000, count)} | {
        TS + count + i: (3, 77 * i) for i in range(500)
    }
    assert found.entries == {
        b"ts:" + struct.pack(">Q", ts): struct.pack("<Iq", *place) for ts, place in pointers.items()
    } | {
        b"!binlog!headPointer": struct.pack("<Iq", 3, 499 * 77),
        b"!binlog!handlePointer": struct.pack("<Iq", 2, 5),
        b"!binlog!maxCommitTS": struct.pack("<Q", TS + 9),
        b"!binlog!gcts": struct.pack("<Q", 7),
        b"!sluice!longTransactions": struct.pack("<QQ", 7, 3),
        b"~sluice!end": b"",
    }


@pytest.mark.parametrize("name", ["types", "ddl", "orphans", "shop"])
def test_a_real_pumps_database_is_what_leveldb_makes_of_it(name: str, tmp_path: Path) -> None:
    path = restore(name, tmp_path) / "kv"
    written = read_database(path)
    assert written.comparator == "leveldb.BytewiseComparator"
    index = BinlogIndex(path, IndexOptions())
    index.close()
    assert raw(path) == written.entries | {b"~sluice!end": b""}
    assert read_database(path).entries == raw(path)  # now in LevelDB's own files


@pytest.mark.parametrize("what", ["CURRENT", "MANIFEST"])
def test_a_database_leveldb_refuses_is_set_aside_and_made_anew(what: str, tmp_path: Path) -> None:
    index = BinlogIndex(tmp_path / "kv", IndexOptions())
    index.put_batch(0, [1], [TS], [TS + 1], [0])
    index.close()
    for path in (tmp_path / "kv").glob(f"{what}*"):
        path.write_bytes(b"garbage" * 20)
    again = BinlogIndex(tmp_path / "kv", IndexOptions())
    assert again.was_rebuilt
    assert again.get(TS + 1) is None
    assert len(list(tmp_path.glob("kv.broken-*"))) == 1


def test_an_index_in_use_is_refused(tmp_path: Path) -> None:
    holder = BinlogIndex(tmp_path / "kv", IndexOptions())
    with pytest.raises(OSError, match="can't be opened"):
        BinlogIndex(tmp_path / "kv", IndexOptions())
    holder.close()
    assert not list(tmp_path.glob("kv.broken-*"))


@settings(max_examples=examples(30), deadline=None)
@given(
    entries=st.dictionaries(
        st.integers(1, 500),
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)),
        max_size=60,
    ),
    after=st.integers(0, 500),
    through=st.integers(0, 500),
    limit=st.integers(1, 70),
)
def test_range_gives_the_keys_behind_after_up_to_through(
    entries: dict[int, tuple[int, int]],
    after: int,
    through: int,
    limit: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    index = BinlogIndex(tmp_path_factory.mktemp("index") / "kv", IndexOptions())
    for ts, (fid, offset) in entries.items():
        index.put_batch(fid, [1], [0], [ts], [offset])
    expected = [(ts, *entries[ts]) for ts in sorted(entries) if after < ts <= through][:limit]
    keys, fids, offsets = index.range(after, through, limit)
    assert list(zip(keys.tolist(), fids.tolist(), offsets.tolist(), strict=True)) == expected
    fids, offsets = index.pointers(after, through, limit)
    assert list(zip(fids.tolist(), offsets.tolist(), strict=True)) == [e[1:] for e in expected]
    index.close()


def test_deleting_goes_through_the_timestamp_and_no_further(tmp_path: Path) -> None:
    index = BinlogIndex(tmp_path / "kv", IndexOptions())
    index.put_batch(0, [1] * 5000, [0] * 5000, range(5000), list(range(5000)))
    assert index.delete_through(3999, RecordPointer(1, 0), threading.Event()) == 4000
    assert index.get(3999) is None
    assert index.get(4000) == RecordPointer(0, 4000)
    assert index.head_pointer() == RecordPointer(0, 4999)
    stopped = threading.Event()
    stopped.set()
    assert index.delete_through(4999, RecordPointer(1, 0), stopped) == 0


def test_keys_sort_as_timestamps_do() -> None:
    assert encode_key(255) < encode_key(256) < encode_key(1 << 32) < encode_key((1 << 63) - 1)
