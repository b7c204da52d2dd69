"""What is wrong with an archive's files is said, with the place and the way out.

Wrong rows are never served.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from archivekit import archive_all
from relaykit import BASE, HOUR, land

from sluice.relay import RelayCorruptError, RelayError, RelayGapError, RelayLog
from sluice.relay.archive import Archive, ArchiveLog

DAY = 24 * HOUR
STEPS = {"log": 7, "index": 2, "day": 5}
"""Every so many bytes are flipped. Tried with all of them."""


@pytest.fixture
def archive(tmp_path):
    """Three segments on three days, two windows each."""
    relay = RelayLog.open(f"{tmp_path.as_uri()}/relay")
    for i in range(6):
        lo = BASE + i * (DAY // 2)
        land(relay, lo, lo + DAY // 2, lo + 5, lo + 9)
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    archive_all(relay, archive, [2])
    return archive


def everything(url: str) -> pa.Table:
    log = ArchiveLog.open(url)
    return log.read(log.windows(0))


def spoiled(path: Path, archive: Archive, data: bytes, expected: pa.Table) -> str:
    """What is said when the file holds other bytes; "" if it makes no difference."""
    path.write_bytes(data)
    try:
        assert everything(archive.url).equals(expected)
        return ""
    except RelayError as error:
        assert error.hint
        return str(error)


def a_file(archive: Archive, kind: str) -> Path:
    root = Path(archive.url.removeprefix("file://"))
    segment = list(archive.segments())[1]
    days = sorted((root / "days" / segment.day).iterdir())
    return {"log": root / segment.log.path, "index": root / segment.index.path, "day": days[-1]}[
        kind
    ]


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("kind", ["log", "index", "day"])
def test_a_flipped_byte_anywhere_is_found_with_the_file_named_or_makes_no_difference(archive, kind):
    expected = everything(archive.url)
    path = a_file(archive, kind)
    whole = path.read_bytes()
    harmless = 0
    for at in range(0, len(whole), STEPS[kind]):
        said = spoiled(
            path,
            archive,
            whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :],
            expected,
        )
        harmless += not said
        assert not said or path.name in said
    assert harmless <= (4 if kind == "log" else 0)  # the magic word at its beginning
    path.write_bytes(whole)
    assert everything(archive.url).equals(expected)


@pytest.mark.parametrize("kind", ["log", "index", "day"])
def test_a_truncated_file_is_named(archive, kind):
    expected = everything(archive.url)
    path = a_file(archive, kind)
    whole = path.read_bytes()
    for size in (*range(0, len(whole), 29), len(whole) - 2):
        assert path.name in spoiled(path, archive, whole[:size], expected)
    assert path.name in spoiled(path, archive, whole + b"\0", expected)


@pytest.mark.parametrize("kind", ["log", "index"])
def test_a_missing_file_is_named_and_what_doesn_t_need_it_can_be_read(archive, kind):
    path = a_file(archive, kind)
    first, spoiled_one, last = archive.segments()
    path.unlink()
    with pytest.raises(
        RelayCorruptError, match=f"{path.name}.*the file is missing.*restore the file from a copy"
    ):
        everything(archive.url)
    log = archive.log
    assert log.read(log.windows(first.lo, first.hi)).num_rows == 4
    assert log.read(log.windows(last.lo, last.hi)).num_rows == 4
    if kind == "index":
        with pytest.raises(RelayCorruptError, match=path.name):
            log.find(spoiled_one.lo)


def test_a_day_whose_documents_are_gone_is_a_hole_that_is_named(archive):
    first, gone, last = archive.segments()
    shutil.rmtree(Path(archive.url.removeprefix("file://")) / "days" / gone.day)
    found = []
    with pytest.raises(
        RelayGapError,
        match=f"no segment begins at {gone.lo}.*{last.day} one begins at {last.lo}.*restore",
    ):
        found.extend(archive.segments())
    assert found == [first]
    with pytest.raises(RelayGapError, match=str(gone.lo)):
        list(archive.log.windows(first.lo))
    assert list(archive.segments(last.lo)) == [last]
    with pytest.raises(RelayGapError, match=f"begins at {last.lo}"):
        list(archive.segments(last.lo - 5))


def test_that_the_first_day_is_gone_is_told_unless_it_was_removed_as_it_should_be(archive):
    segments = list(archive.segments())
    assert archive.missing_before() == ""
    archive.remove(segments[0].hi)
    archive.sweep(0)
    assert (archive.first(), archive.missing_before()) == (segments[1], "")
    shutil.rmtree(Path(archive.url.removeprefix("file://")) / "days" / segments[1].day)
    assert (
        f"days/{segments[2].day}: the archive begins at {segments[2].lo}"
        in archive.missing_before()
    )


def test_who_asks_for_a_moment_before_the_first_volume_is_told_so(archive):
    first = archive.first()
    with pytest.raises(
        RelayGapError,
        match=f"the archive begins at {first.lo}, .* after {first.lo - 1} isn't in it",
    ):
        list(archive.segments(first.lo - 1))


def test_the_newest_document_of_a_day_gone_leaves_what_was_before_the_last_change(
    archive, tmp_path
):
    relay = RelayLog.open(f"{tmp_path.as_uri()}/relay")
    lo = relay.last().hi
    land(relay, lo, lo + 20, lo + 7)
    newest = list(archive.segments())[-1]
    expected = everything(archive.url)
    for number in sorted(
        (Path(archive.url.removeprefix("file://")) / "days" / newest.day).iterdir()
    )[-1:]:
        number.unlink()
    assert archive.last().hi == newest.lo
    shutil.rmtree(tmp_path / "archive/log" / newest.day)
    archive_all(relay, archive, [2])
    again = everything(archive.url)
    assert again.slice(0, expected.num_rows).equals(expected)
    assert again.num_rows == expected.num_rows + 1
