"""Past windows applied again without Spark, and what a test looks at afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.etl.apply import Prepare, prepare_options
from sluice.etl.changes.formats.binlog_file import commit_ts_of, list_files, read_file
from sluice.etl.changes.planning import prepare
from sluice.etl.settings import Downstream, File, Relay, Settings, Upstream
from sluice.etl.verify.reapply import ReplayRequest, ReplaySummary, create_or_resume, run_reapply
from sluice.relay import RelayLog
from sluice.relay.jobs import JobCounts, Runner, TableProgress


def pipeline_with(url: str, folder: Path) -> Settings:
    """A pipeline whose downstream is a folder of files."""
    return Settings(
        Upstream("unused"), Relay(url), Downstream(type="file"), file=File(dir=str(folder))
    )


def files_in(folder: Path, **more: Any) -> dict[str, Any]:
    """The other downstream: a folder of binlog files."""
    return {"downstream": {"type": "file"}, "file": {"dir": str(folder), **more}}


def preparer_of(settings: Settings, request: ReplayRequest) -> Prepare:
    own = request.settings(settings)
    options = prepare_options(own)
    return lambda windows: prepare(own.relay.url, windows, options)


class Enough(Exception):
    """A test has seen what it wanted."""


def reapply(
    settings: Settings,
    request: ReplayRequest,
    on_progress: Callable[[JobCounts, TableProgress], None] = lambda done, of: None,
) -> ReplaySummary:
    job = create_or_resume(settings, request, "test")
    prepare = preparer_of(settings, request)
    return run_reapply(settings, job, Runner("test"), prepare=prepare, on_progress=on_progress)


def stop_after(batches: int) -> Callable[[JobCounts, TableProgress], None]:
    """Ends a job with Enough behind so many batches."""
    left = iter(range(batches - 1))

    def stop(_done: JobCounts, _of: TableProgress) -> None:
        if next(left, None) is None:
            raise Enough

    return stop


def records(folder: Path) -> bytes:
    """Every file of a folder, one behind the other."""
    return b"".join(path.read_bytes() for path in list_files(folder))


def messages_in(folder: Path) -> list[bytes]:
    return [message for path in list_files(folder) for _, message in read_file(path)]


def between(messages: list[bytes], since: int, until: int) -> list[bytes]:
    return [message for message in messages if since < commit_ts_of(message) <= until]


def documents(relay: RelayLog) -> dict[str, bytes]:
    """Everything under the relay's URL that is no window, part or job: what a pipeline is told and
    has noted.
    """
    root = Path(relay.url.removeprefix("file://"))
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and path.relative_to(root).parts[0] not in ("parts", "windows", "jobs", "open-jobs")
    }


def small_batches(target: Mapping[str, Any], max_rows: int) -> dict[str, Any]:
    return {**target, "apply": {"max-rows": max_rows}}
