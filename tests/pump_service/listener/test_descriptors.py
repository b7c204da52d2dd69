"""File descriptors: the value log takes few of them however long it is, and running out of them
loses nothing.
"""

import contextlib
import dataclasses
import os
import resource
import threading

import psutil
import pytest

from sluice.pump_service.store import Store, StoreError
from sluice.pump_service.store.segment import OpenDescriptor
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    prewrite,
    pulled,
    settle,
    transactions,
    vlog_records,
    window,
    write,
)

TINY = dataclasses.replace(OPTIONS, segment_limit=200)


def _open_segments(folder):
    return [
        file
        for file in psutil.Process().open_files()
        if file.path.startswith(str(folder / "value"))
    ]


@contextlib.contextmanager
def no_descriptor_left():
    """All that the process may open are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_hundreds_of_segments_take_few_descriptors_and_all_are_read(tmp_path):
    store = Store.open(tmp_path, TINY)
    records = transactions(300, value=b"v" * 100)
    for at in range(0, len(records), 2):
        write(store, *records[at : at + 2])
    settle(store)
    assert store.stats().segments > 150
    everything = window(store)
    assert len(everything) == 300
    assert len(_open_segments(tmp_path)) <= 66
    store.close()
    store = Store.open(tmp_path, TINY)
    settle(store)
    assert len(_open_segments(tmp_path)) <= 66
    assert window(store) == everything
    store.close()


def test_readers_of_segments_that_others_close_read_what_is_there(tmp_path):
    store = Store.open(tmp_path, TINY)
    records = transactions(200, value=b"v" * 100)
    for at in range(0, len(records), 2):
        write(store, *records[at : at + 2])
    settle(store)
    everything = window(store)
    through = everything[-1][0]
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(pulled(store, through)), daemon=True)
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(one) for one in found] == [len(everything)] * 6
    assert store.stats().corrupt_records == 0
    store.close()


def test_without_a_descriptor_the_next_segment_waits_and_then_writing_goes_on(tmp_path):
    store = Store.open(tmp_path, TINY)
    write(store, prewrite(BASE, b"v" * 300))  # the segment is full
    eventually(lambda: store.stats().segments == 2)
    with no_descriptor_left():
        # fits into what is open, but not the one after it
        write(store, commit(BASE, BASE + 1, b"k" * 300))
        with pytest.raises(StoreError, match="file descriptor"):
            write(store, prewrite(BASE + 2, b"w" * 300))
        assert not store.stats().failed
    write(store, prewrite(BASE + 4, b"w" * 300), commit(BASE + 4, BASE + 5))
    settle(store)
    assert [commit_ts for commit_ts, _, _ in window(store)] == [BASE + 1, BASE + 5]
    store.close()
    assert len(vlog_records(tmp_path)) == 4


def test_a_descriptor_is_closed_when_nobody_uses_it(tmp_path):
    (tmp_path / "f").touch()
    before = psutil.Process().num_fds()
    file = OpenDescriptor(tmp_path / "f", os.O_RDONLY)
    assert psutil.Process().num_fds() == before + 1
    del file
    assert psutil.Process().num_fds() == before
