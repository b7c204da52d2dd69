"""Aligned chunks: created once, settled once by the first process, and read back by every one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.relay import (
    AlignedChunk,
    AlignedChunkExistsError,
    ChunkCancelled,
    ChunkReady,
    LoadFile,
    RelayCorruptError,
    RelayLog,
    TableRepair,
)

C = 470614793860415502


@pytest.fixture
def relay(tmp_path: Path) -> RelayLog:
    return RelayLog.open(f"file://{tmp_path}")


def aligned_chunk(at_ts: int, job: str = "b1") -> AlignedChunk:
    return AlignedChunk(at_ts, job, 3, 107, "shop", "órders", "replace", "`id` >= 5", ("id",))


def test_what_is_made_is_on_every_processs_agenda_in_order_until_it_is_removed(
    relay: RelayLog,
) -> None:
    other = RelayLog.open(relay.url)
    assert other.aligned_chunks.agenda(0).pending == ()
    relay.aligned_chunks.make(aligned_chunk(C + 9))
    relay.aligned_chunks.make(aligned_chunk(C, "b2"))
    assert other.aligned_chunks.agenda(0).pending == (
        aligned_chunk_as(C, "b2", relay),
        aligned_chunk_as(C + 9, "b1", relay),
    )
    assert [found.at_ts for found in other.aligned_chunks.agenda(C + 1).pending] == [C + 9]
    assert [found.at_ts for found in other.aligned_chunks.of_job("b2")] == [C]
    relay.aligned_chunks.remove(C)
    relay.aligned_chunks.remove(C)
    assert [found.at_ts for found in other.aligned_chunks.agenda(0).pending] == [C + 9]


def aligned_chunk_as(at_ts: int, job: str, relay: RelayLog) -> AlignedChunk:
    (found,) = [one for one in relay.aligned_chunks.of_job(job) if one.at_ts == at_ts]
    return found


def test_a_second_aligned_chunk_at_the_same_timestamp_is_refused(relay: RelayLog) -> None:
    relay.aligned_chunks.make(aligned_chunk(C))
    with pytest.raises(AlignedChunkExistsError, match=str(C)):
        relay.aligned_chunks.make(aligned_chunk(C, "b2"))
    assert [found.job for found in relay.aligned_chunks.agenda(0).pending] == ["b1"]


def test_who_settles_first_decides_and_a_void_one_is_on_no_agenda(relay: RelayLog) -> None:
    other = RelayLog.open(relay.url)
    ready = ChunkReady(
        {"id": 107},
        C,
        (LoadFile("jobs/b1/x", {"columns": ["a"], "bits": [], "hex": []}, 5, 0, 99, 7),),
    )
    void = ChunkCancelled("it took too long", "apply")
    for at_ts, first, second in ((C, ready, void), (C + 1, void, ready)):
        relay.aligned_chunks.make(aligned_chunk(at_ts))
        assert other.aligned_chunks.outcome(at_ts) is None
        assert relay.aligned_chunks.settle(at_ts, first) == first
        assert other.aligned_chunks.settle(at_ts, second) == first
        assert other.aligned_chunks.outcome(at_ts) == first
    assert [found.at_ts for found in other.aligned_chunks.agenda(0).pending] == [C]
    assert ready.rows == 5


def test_an_aligned_chunk_removed_and_made_again_is_read_anew(relay: RelayLog) -> None:
    other = RelayLog.open(relay.url)
    relay.aligned_chunks.make(aligned_chunk(C))
    relay.aligned_chunks.settle(C, ChunkCancelled("no", "job"))
    assert other.aligned_chunks.agenda(0).pending == ()
    relay.aligned_chunks.remove(C)
    assert other.aligned_chunks.agenda(0).pending == ()
    relay.aligned_chunks.make(aligned_chunk(C, "b2"))
    assert [found.job for found in other.aligned_chunks.agenda(0).pending] == ["b2"]


def outcome_alone(relay: RelayLog, at_ts: int) -> None:
    """As a job leaves it that is killed between the two removals."""
    relay.aligned_chunks.make(aligned_chunk(at_ts))
    relay.aligned_chunks.settle(at_ts, ChunkCancelled("no", "job"))
    relay.storage.remove(f"aligned-chunks/{at_ts:020d}.json")


def test_an_outcome_without_its_aligned_chunk_is_swept_and_no_other(relay: RelayLog) -> None:
    outcome_alone(relay, C)
    relay.aligned_chunks.make(aligned_chunk(C + 1))
    relay.aligned_chunks.settle(C + 1, ChunkReady({"id": 107}, C))
    relay.aligned_chunks.make(aligned_chunk(C + 2))
    RelayLog.open(relay.url).aligned_chunks.sweep(lambda job: False)
    assert relay.aligned_chunks.outcome(C + 1) is not None
    assert relay.storage.names("aligned-chunks") == [
        f"{C + 1:020d}.json", f"{C + 1:020d}.outcome.json", f"{C + 2:020d}.json"
    ]  # fmt: skip


def test_what_is_made_and_settled_while_the_sweep_lists_names_stays(
    relay: RelayLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome_alone(relay, C)
    relay.aligned_chunks.make(aligned_chunk(C + 1))
    relay.aligned_chunks.settle(C + 1, ChunkCancelled("no", "apply"))
    listed = relay.storage.names("aligned-chunks")
    listed.remove(f"{C + 1:020d}.json")  # the listing came by there before it was made
    with monkeypatch.context() as listing:
        listing.setattr(type(relay.storage), "names", lambda self, path: listed)
        relay.aligned_chunks.sweep(lambda job: False)
    assert relay.storage.names("aligned-chunks") == [
        f"{C + 1:020d}.json",
        f"{C + 1:020d}.outcome.json",
    ]


def test_who_settles_what_was_removed_is_told_that_it_is_void_and_leaves_nothing(
    relay: RelayLog,
) -> None:
    for outcome in (ChunkCancelled("it took too long", "apply"), ChunkReady({"id": 107}, C)):
        relay.aligned_chunks.make(aligned_chunk(C))
        assert relay.aligned_chunks.agenda(0).pending
        RelayLog.open(relay.url).aligned_chunks.remove(C)
        assert isinstance(relay.aligned_chunks.settle(C, outcome), ChunkCancelled)
        assert relay.storage.names("aligned-chunks") == []


def test_what_belongs_to_a_job_that_is_over_is_swept(relay: RelayLog) -> None:
    for at_ts, job in ((C, "b1"), (C + 1, "b2")):
        relay.aligned_chunks.make(aligned_chunk(at_ts, job))
        relay.aligned_chunks.settle(at_ts, ChunkReady({"id": 107}, at_ts))
        relay.aligned_chunks.begin_repair(TableRepair(f"{job}.1", job, (107,)))
    relay.aligned_chunks.sweep(lambda job: job == "b1")
    assert relay.storage.names("aligned-chunks") == [
        f"{C + 1:020d}.json", f"{C + 1:020d}.outcome.json", "b2.1.repair.json"
    ]  # fmt: skip


def test_tables_are_mended_from_when_it_is_said_until_it_is_taken_back(relay: RelayLog) -> None:
    other = RelayLog.open(relay.url)
    relay.aligned_chunks.begin_repair(TableRepair("b1", "b1", (107, 109)))
    relay.aligned_chunks.begin_repair(TableRepair("b1", "b1", (107, 109)))
    relay.aligned_chunks.begin_repair(TableRepair("b2.1", "b2", (109, 111)))
    assert other.aligned_chunks.agenda(C).tables_under_repair == {107, 109, 111}
    relay.aligned_chunks.end_repair("b1")
    relay.aligned_chunks.end_repair("b1")
    assert other.aligned_chunks.agenda(C).tables_under_repair == {109, 111}
    assert [repair.name for repair in other.aligned_chunks.repairs()] == ["b2.1"]
    relay.aligned_chunks.begin_repair(TableRepair("b1", "b1", (113,)))
    assert other.aligned_chunks.agenda(C).tables_under_repair == {109, 111, 113}
    with pytest.raises(ValueError, match="invalid name"):
        relay.aligned_chunks.begin_repair(TableRepair("a/b", "b1", (1,)))


def test_one_is_due_from_its_timestamp_on_as_long_as_it_lies_ahead(relay: RelayLog) -> None:
    relay.aligned_chunks.make(aligned_chunk(C))
    assert not relay.aligned_chunks.due(C - 9, C - 1)
    assert relay.aligned_chunks.due(C - 9, C)
    assert not relay.aligned_chunks.due(C, C + 9)


@pytest.mark.parametrize("name", ["{}.json", "{}.outcome.json"])
def test_a_damaged_file_stops_with_its_name(relay: RelayLog, tmp_path: Path, name: str) -> None:
    relay.aligned_chunks.make(aligned_chunk(C))
    file = tmp_path / "aligned-chunks" / name.format(f"{C:020d}")
    file.write_text('{"neither": 1}')
    with pytest.raises(RelayCorruptError, match=file.name):
        relay.aligned_chunks.agenda(0)
