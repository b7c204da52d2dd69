"""An index whose files were damaged, or that a power cut took a part of: nothing read from it may
lack a transaction.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import threading
from pathlib import Path

import pytest

from sluice.pump_service.store import IndexOptions, Store
from sluice.pump_service.store.errors import IndexDamagedError
from sluice.pump_service.store.index import BinlogIndex, Ints
from sluice.pump_service.store.leveldb import END_KEY, CheckedDB, DamagedError
from sluice.pump_service.store.segment import RecordPointer
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    copy_live,
    eventually,
    paired,
    prewrite,
    pulled,
    settle,
    transactions,
    window,
    write,
)

COUNT = 3000
SMALL = IndexOptions(write_buffer=1 << 16, compaction_table_size=1 << 20)


def made(path: Path) -> None:
    """COUNT transactions, their index in tables rather than in LevelDB's journal."""
    store = Store.open(path, dataclasses.replace(OPTIONS, kv=SMALL))
    records = transactions(COUNT)
    for first in range(0, len(records), 500):
        write(store, *records[first : first + 500])
    settle(store)
    store.close()
    BinlogIndex(path / "kv", SMALL).close()  # the journal becomes a table


def places(path: Path) -> list[tuple[Path, int]]:
    """Somewhere in every table, and everywhere near its end: the last blocks and the index of
    blocks.
    """
    choice = random.Random(7)
    found = []
    for table in sorted((path / "kv").glob("*.ldb")):
        size = table.stat().st_size
        found += [(table, choice.randrange(size)) for _ in range(4)]
        found += [(table, at) for at in range(max(0, size - 6000), size, 601)]
    return found


def test_every_damaged_byte_of_a_table_is_met_by_a_read(tmp_path: Path) -> None:
    made(tmp_path)
    wanted = CheckedDB(tmp_path / "kv", SMALL)
    right = wanted.pairs(b"", END_KEY, 1 << 30)
    middle = right[len(right) // 2][0]
    wanted.close()
    silent = []
    for table, at in places(tmp_path):
        copy = shutil.copytree(tmp_path / "kv", tmp_path / "copy")
        data = bytearray((copy / table.name).read_bytes())
        data[at] ^= 4
        (copy / table.name).write_bytes(data)
        for stop in (END_KEY, middle):
            try:
                db = CheckedDB(copy, SMALL)
                try:
                    found = db.pairs(b"", stop, 1 << 30)
                finally:
                    db.close()
            except DamagedError:
                continue
            if found != [pair for pair in right if pair[0] < stop]:
                silent.append((table.name, at, len(found)))
        shutil.rmtree(copy)
    assert not silent
    assert len(right) > 2 * COUNT


def test_a_zeroed_page_and_a_table_that_is_gone_are_met_by_a_read(tmp_path: Path) -> None:
    made(tmp_path)
    tables = sorted((tmp_path / "kv").glob("*.ldb"))
    for table in tables:
        for what in ("zeroed", "gone"):
            copy = shutil.copytree(tmp_path / "kv", tmp_path / "copy")
            if what == "gone":
                (copy / table.name).unlink()
            else:
                data = bytearray(table.read_bytes())
                data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
                (copy / table.name).write_bytes(data[: table.stat().st_size])
            with pytest.raises(DamagedError):
                db = CheckedDB(copy, SMALL)
                try:
                    db.pairs(b"", END_KEY, 1 << 30)
                finally:
                    db.close()
            shutil.rmtree(copy)


def test_a_reader_that_meets_damage_is_refused_and_then_given_everything(tmp_path: Path) -> None:
    made(tmp_path)
    table = max((tmp_path / "kv").glob("*.ldb"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    expected = paired(transactions(COUNT))
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, kv=SMALL))
    top = store.max_commit_ts

    def whole() -> bool:
        try:
            assert window(store, 0, top) == expected
        except IndexDamagedError:
            return False
        return True

    assert not whole()
    eventually(whole)
    assert [row[:2] for row in pulled(store, expected[-1][0])] == [row[:2] for row in expected]
    assert len(list(tmp_path.glob("kv.broken-*"))) == 1
    more = transactions(20, COUNT)
    write(store, *more)
    settle(store)
    assert window(store) == expected + paired(more)
    store.close()
    again = Store.open(tmp_path, OPTIONS)
    assert window(again) == expected + paired(more)
    assert again.stats().index_errors == 0
    again.close()


def test_nothing_is_read_from_an_index_that_is_still_being_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, kv=SMALL))
    top = store.max_commit_ts
    put = store._index.put_arrays
    half_way, go_on = threading.Event(), threading.Event()

    def half(fid: int, *columns: Ints) -> None:
        put(fid, *(column[:100] for column in columns))
        half_way.set()
        assert go_on.wait(60)
        monkeypatch.setattr(store._index, "put_arrays", put)
        raise OSError("and then it fails")

    monkeypatch.setattr(store._index, "put_arrays", half)
    monkeypatch.setattr("sluice.pump_service.store.indexer._RETRY_INTERVAL_S", 0.02)
    store._index._report("a test says so")
    assert half_way.wait(60)
    for _ in range(2):
        with pytest.raises(IndexDamagedError):
            window(store, 0, top)
        with pytest.raises(IndexDamagedError):
            store.bounds(0, top, 10, 1 << 20)
        with pytest.raises(IndexDamagedError):
            pulled(store, top)
    go_on.set()
    eventually(lambda: store._index.is_complete)
    assert window(store, 0, top) == paired(transactions(COUNT))
    store.close()


def test_damage_to_the_index_keeps_what_was_purged_purged(tmp_path: Path) -> None:
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, segment_limit=2000))
    hour = 3_600_000 << 18
    for i in range(40):
        write(store, prewrite(BASE + i * hour), commit(BASE + i * hour, BASE + i * hour + 1))
    settle(store, BASE + 41 * hour)
    purged = store.gc(BASE + 20 * hour)
    assert purged == BASE + 20 * hour
    store._index._report("a test says so")
    eventually(lambda: store._index.is_complete)
    assert store._index.gc_ts() == store.gc_ts == purged
    assert [row[0] for row in window(store, purged)] == [BASE + i * hour + 1 for i in range(20, 40)]
    store.close()


@pytest.mark.parametrize("block", [0, 1, -1])
def test_a_power_cut_that_takes_a_block_of_the_journal_loses_no_transaction(
    block: int, tmp_path: Path
) -> None:
    """LevelDB skips a zeroed block without a word, and what was written behind it, the original's
    pointers among it, stays.
    """
    options = dataclasses.replace(
        OPTIONS,
        save_interval_s=0.05,
        sync_interval_s=3600.0,
        kv=IndexOptions(write_buffer=64 << 20),
    )
    live = tmp_path / "live"
    store = Store.open(live, options)
    first, rest = transactions(500), transactions(COUNT, 500)
    write(store, *first)
    settle(store, BASE + 60_000)
    eventually(lambda: store._indexer._synced is not None)
    journal = max((live / "kv").glob("*.log"))
    synced = journal.stat().st_size
    for i in range(0, len(rest), 500):
        write(store, *rest[i : i + 500])
    settle(store)
    top = store._sorter.handled()[1]
    eventually(lambda: store._indexer._saved[1] == top)
    cut = tmp_path / "cut"
    copy_live(live, cut)
    store.close()
    journal = cut / "kv" / journal.name
    data = bytearray(journal.read_bytes())
    blocks = range(-(-synced // 32768), len(data) // 32768)
    at = blocks[block] * 32768
    data[at : at + 32768] = bytes(32768)
    journal.write_bytes(data)
    again = Store.open(cut, OPTIONS)
    assert window(again) == paired(first + rest)
    again.close()


def test_a_clean_stop_leaves_nothing_to_index_again(tmp_path: Path) -> None:
    made(tmp_path)
    index = BinlogIndex(tmp_path / "kv", SMALL)
    standing = index.position()
    assert standing.max_commit_ts == paired(transactions(COUNT))[-1][0]
    assert (
        standing.handled
        == standing.head
        == index.get(standing.max_commit_ts)
        != RecordPointer(0, 0)
    )
    index.close()


def test_only_one_module_opens_leveldb() -> None:
    root = Path(__file__).parents[3]
    users = [
        p
        for room in ("pump_service", "tidb", "etl", "relay", "cli")
        for p in (root / room).rglob("*.py")
    ]
    assert [p.name for p in users if "plyvel" in p.read_text()] == ["leveldb.py"]
