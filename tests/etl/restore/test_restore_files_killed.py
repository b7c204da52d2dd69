"""Restores into files as real processes: killed, standing still while another one goes on, on a
full disk, given up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import ours
from sluice.etl.history.as_of import run_locally
from sluice.etl.restore import (
    cancel_files,
    create_or_resume,
    files_folder,
    into_files,
    run_files,
)
from sluice.relay.archive import Archive, Pins
from sluice.relay.jobs import CANCEL, CANCELLED, DONE, FAILED, Job, Runner
from tests.etl.restore import killed_restore_files
from tests.etl.restore.killed_restore_files import (
    TABLES,
    TABLES_AT_A_TIME,
    request_for,
    settings_of,
    write,
)
from tests.etl.restore.restoring import archive_of, restore_files
from tests.etl.stopped_work import Worker, Workshop
from tests.small_disk import small_disk


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A relay log with its archive."""
    return archive_of("shop", tmp_path_factory.mktemp("killed-files"), 2000)


@pytest.fixture(scope="module")
def undisturbed(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a restore that nothing meets, by name."""
    folder = tmp_path_factory.mktemp("undisturbed") / "files"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(into_files, "_TABLES_PER_QUERY", TABLES_AT_A_TIME)
        restore_files(settings_of(url), request_for(str(folder)))
    return files_of(folder)


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with Workshop(killed_restore_files.__name__) as shop:
        yield shop


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.relay.jobs.job.DEAD_AFTER_S", 0.1)
    monkeypatch.setattr(into_files, "_TABLES_PER_QUERY", TABLES_AT_A_TIME)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def asked(url: str, folder: Path) -> Job:
    return create_or_resume(settings_of(url), request_for(str(folder)), "test")


def is_held(url: str, job: Job) -> bool:
    """Whether what it reads stays in the archive."""
    return any(
        hold.job == job.id
        for hold in Pins(Archive.open(settings_of(url).archive_url).storage).all().values()
    )


def begun(shop: Workshop, url: str, job: Job, folder: Path, stop: int | str, how: str) -> Worker:
    """A process that does the job, and met the signal or has ended."""
    told = folder.parent / "told"
    args = url, str(folder / "files"), job.id, str(told), str(stop), how
    worker = shop.start(write, args, folder.parent / f"steps.{how}")
    worker.rests()
    return worker


def served_by_half(folder: Path, undisturbed: dict[str, bytes]) -> list[str]:
    """What is there under its own name, and isn't what it becomes in the end."""
    there = {
        name: data
        for name, data in files_of(folder).items()
        if not name.endswith((".partial", ".lock"))
    }
    manifest = json.loads(there.pop("manifest.json", b'{"tables": [], "whole": false}'))
    wrong = [name for name, data in there.items() if data != undisturbed[name]]
    wrong += [
        f"{one['name']}, in the manifest" for one in manifest["tables"] if one["file"] not in there
    ]
    whole = {one["name"] for one in manifest["tables"]} == set(TABLES)
    return wrong + (["the manifest"] if manifest["whole"] != whole else [])


@pytest.fixture(scope="module")
def steps(
    shop: Workshop,
    url: str,
    undisturbed: dict[str, bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> int:
    """Of a restore that nothing meets."""
    folder = tmp_path_factory.mktemp("steps") / "here"
    begun(shop, url, asked(url, folder / "files"), folder, 0, "SIGKILL")
    assert files_of(folder / "files") == undisturbed
    return len((folder.parent / "told").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("point", [0.4, 0.9])
def test_another_process_goes_on_where_one_was_killed_and_nothing_was_served_by_half(
    shop: Workshop,
    url: str,
    undisturbed: dict[str, bytes],
    steps: int,
    tmp_path: Path,
    point: float,
) -> None:
    folder = tmp_path / "here"
    job = asked(url, folder / "files")
    begun(shop, url, job, folder, round(steps * point), "SIGKILL")
    assert job.entry().state == "running", "it was killed"
    assert served_by_half(folder / "files", undisturbed) == []
    run_files(settings_of(url), job, Runner("the next"), compute=run_locally)
    assert files_of(folder / "files") == undisturbed
    assert job.entry().state == DONE and not is_held(url, job)


@pytest.mark.parametrize(
    "step", ["open bank.cart.parquet 1", "write_text bank.log_nopk.schema.sql 1"]
)
def test_one_that_stood_still_wakes_up_and_changes_nothing_any_more(
    shop: Workshop, url: str, undisturbed: dict[str, bytes], tmp_path: Path, step: str
) -> None:
    folder = tmp_path / "here"
    job = asked(url, folder / "files")
    first = begun(shop, url, job, folder, step, "SIGSTOP")
    try:
        assert first.is_alive()
        run_files(settings_of(url), job, Runner("the next"), compute=run_locally)
        assert files_of(folder / "files") == undisturbed
        first.wake()
        assert "LeaseLostError: the job" in first.ended()
        assert files_of(folder / "files") == undisturbed
    finally:
        first.kill()


def test_one_that_stands_still_while_it_writes_the_manifest_is_named_and_ended_the_restore_goes_on(
    shop: Workshop,
    url: str,
    undisturbed: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files_folder, "_LOCK_TIMEOUT_S", 0.1)
    folder = tmp_path / "here"
    job = asked(url, folder / "files")
    first = begun(shop, url, job, folder, "replace manifest.json 1", "SIGSTOP")
    try:
        with pytest.raises(
            files_folder.FolderLockedError, match=r"process \d+ on .* makes no progress"
        ) as told:
            run_files(settings_of(url), job, Runner("the next"), compute=run_locally)
        assert told.value.transient and job.entry().state == FAILED
    finally:
        first.kill()
    run_files(settings_of(url), job, Runner("the next"), compute=run_locally)
    assert files_of(folder / "files") == undisturbed


def test_given_up_nothing_of_it_stays_but_what_was_there_before(
    shop: Workshop, url: str, steps: int, tmp_path: Path
) -> None:
    folder = tmp_path / "above" / "here"
    job = asked(url, folder / "files")
    folder.parent.mkdir()
    (folder.parent / "somebody's").write_text("else")
    begun(shop, url, job, folder, round(steps * 0.7), "SIGKILL")
    assert files_of(folder / "files")
    assert cancel_files(settings_of(url), job, Runner("test")).state == CANCELLED
    assert not folder.exists() and (folder.parent / "somebody's").exists()
    assert not is_held(url, job)


def test_an_order_to_cancel_is_obeyed_while_it_runs(url: str, tmp_path: Path) -> None:
    job = asked(url, tmp_path / "files")
    calls: list[int] = []

    def ordering(plan, finish):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 3:
            job.order(CANCEL, "ann")
        yield from run_locally(plan, finish)

    # An order is heard within a moment; where that comes too late the job is done.
    summary = run_files(settings_of(url), job, Runner("test"), compute=ordering)
    assert summary.state in (CANCELLED, DONE)
    assert (tmp_path / "files").exists() == (summary.state == DONE)


def test_on_a_full_disk_the_file_is_named_and_once_there_is_room_it_goes_on(
    url: str, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    needed = sum(map(len, undisturbed.values()))
    with small_disk(tmp_path, needed + (128 << 10)) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(needed // 2 + (128 << 10)))
        job = asked(url, disk / "files")
        with pytest.raises(
            OSError, match=r"No space left on device: '.*/files/.*\.partial'"
        ) as full:
            run_files(settings_of(url), job, Runner("test"), compute=run_locally)
        assert "make room" in ours(full.value).hint and ours(full.value).transient
        assert job.entry().state == FAILED and "make room" in job.entry().hint
        assert served_by_half(disk / "files", undisturbed) == []
        assert not list((disk / "files").glob("*.partial"))
        ballast.unlink()
        assert run_files(settings_of(url), job, Runner("test"), compute=run_locally).state == DONE
        assert files_of(disk / "files") == undisturbed
