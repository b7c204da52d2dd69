"""Which schema versions a window's rows may have been written by, and when TiKV is asked for it."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.landing._job import TableSpan
from sluice.etl.landing.upstream_schema import CommitVersions, PendingVersion
from sluice.tidb import TiKVClient, TiKVError, read_schema_version
from sluice.tidb.tikv.meta import string_key

_KEY = string_key("SchemaVersionKey")


class Versions:
    """TiKV with schema versions: (commit_ts of SchemaVersionKey, commit_ts of the diff) of each."""

    def __init__(self, *taken: tuple[int, int]) -> None:
        self._values = {
            string_key(f"Diff:{version}"): diff_ts for version, (_, diff_ts) in enumerate(taken, 1)
        }
        self._taken = [ts for ts, _ in taken]
        self.reads: list[int] = []

    def get(self, key: bytes, ts: int) -> bytes | None:
        self.reads.append(ts)
        if key == _KEY:
            return str(sum(taken <= ts for taken in self._taken)).encode()
        return b"{}" if self._values.get(key, ts + 1) <= ts else None


def applied(taken: list[tuple[int, int]], ts: int) -> int:
    """Return the last version whose DDL is there: only that of the last may still be to come."""
    started = [diff_ts <= ts for taken_ts, diff_ts in taken if taken_ts <= ts]
    return len(started) - (not started[-1] if started else 0)


def pending(tikv: Versions, ts: int) -> PendingVersion:
    version = read_schema_version(cast(TiKVClient, tikv), ts)
    return PendingVersion(ts, lambda: version)


def span(last_ts: int, version: int = 0) -> list[TableSpan]:
    return [TableSpan(1, last_ts, last_ts, version, version)]


def commit_versions(tikv: Versions) -> CommitVersions:
    return CommitVersions(cast(TiKVClient, tikv))


@st.composite
def _ddl(draw: st.DrawFn) -> list[tuple[int, int]]:
    taken = sorted(draw(st.lists(st.integers(1, 60), unique=True, max_size=8)))
    return [(ts, ts + draw(st.integers(1, 20))) for ts in taken]


@given(
    taken=_ddl(),
    edges=st.lists(st.integers(1, 90), unique=True, min_size=2, max_size=12).map(sorted),
    data=st.data(),
)
def test_a_window_has_the_version_of_its_last_commit_whenever_ddl_comes(
    taken: list[tuple[int, int]], edges: list[int], data: st.DataObject
) -> None:
    tikv = Versions(*taken)
    versions = commit_versions(tikv)
    for lo, hi in itertools.pairwise(edges):
        last = data.draw(st.integers(lo + 1, hi), label="last commit")
        ahead = pending(tikv, hi) if data.draw(st.booleans(), label="read ahead") else None
        assert versions.newest(span(last), ahead) == applied(taken, last)


def test_a_window_without_ddl_since_the_last_one_does_not_read_from_tikv() -> None:
    tikv = Versions((5, 6))
    versions = commit_versions(tikv)
    assert versions.newest(span(15), pending(tikv, 20)) == 1
    for last, hi in ((25, 30), (31, 40), (50, 50)):
        ahead = pending(tikv, hi)
        tikv.reads.clear()
        assert versions.newest(span(last), ahead) == 1
        assert tikv.reads == []


def test_ddl_between_the_last_row_and_the_end_of_a_window_belongs_to_the_next() -> None:
    tikv = Versions((5, 6), (27, 28))
    versions = commit_versions(tikv)
    assert versions.newest(span(15), pending(tikv, 20)) == 1
    assert versions.newest(span(25), pending(tikv, 30)) == 1
    assert versions.newest(span(31), pending(tikv, 40)) == 2


def test_a_version_that_could_not_be_read_ahead_is_read_as_of_the_last_row() -> None:
    tikv = Versions((5, 6))
    failed: Future[int] = Future()
    failed.set_exception(TiKVError("the key stayed locked"))
    assert commit_versions(tikv).newest(span(15), PendingVersion(20, failed.result)) == 1
    assert set(tikv.reads) == {15}


def test_rows_that_name_a_newer_version_than_their_commit_are_believed() -> None:
    tikv = Versions((5, 6))
    versions = commit_versions(tikv)
    assert versions.newest(span(15, version=3), pending(tikv, 20)) == 3
    assert versions.newest([], None) == 0
