"""Measure the pages' answers on a pipeline of the size that they must bear.

It has 250,000 windows in the relay log, 70 ms apart (51,000 in an hour's folder), 10,000 tables, a
month of archive with a DDL and 500 changed tables an hour and a snapshot every few days, 200 jobs.

python -m sluice.bench.pages [FOLDER]

Makes the pipeline there, unless it is there, and prints how long each answer takes the first time
and then, with the summaries that the DAG `archive` keeps (`sluice.etl.history.retain.summaries`);
what the archive's status takes without them; and `sluice status` and the first overview, each in a
process of its own. Neither PD nor the downstream is there: both refuse at once. A page
never waits for an answer longer than a second: see `sluice.pages.response_cache`.
"""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sluice.etl.history.retain import archive_status
from sluice.etl.history.retain.summaries import refresh_summaries
from sluice.etl.settings import load_settings
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.relay import RelayLog, WindowRecord, hour_of
from sluice.relay.archive import (
    Archive,
    ArchiveSegment,
    ArchiveSnapshot,
    LakeFile,
    SnapshotFile,
    SnapshotTable,
    day_of,
)
from sluice.relay.archive.catalogue import CatalogueDay
from sluice.relay.archive.index import IndexedWindow, SegmentIndex, write_index
from sluice.relay.jobs import DONE, JobCounts, Jobs, Runner, TableProgress, WriteScope
from sluice.relay.measures import CounterStore, TableCount, source_of
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Table

WINDOWS, TABLES, JOBS, SNAPSHOTS, HOURS, MINUTES, CHANGED = 250_000, 10_000, 200, 5, 720, 60, 500
WINDOW_MS = 70
_FIRST_OVERVIEW = """
from sluice.etl.operate.overview import overview
from sluice.etl.settings import load_settings
import os
assert overview(load_settings(os.environ["SLUICE_CONFIG"]), 0.8).relay.hi
"""
END = tso.compose(1_790_000_000_000)


def large_pipeline(folder: Path) -> Path:
    """Make the large pipeline, and return its settings' file."""
    config = folder / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{folder}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    settings = load_settings(config)
    _windows(folder / "relay")
    write_archive(Archive.open(settings.archive_url))
    relay = RelayLog.open(settings.relay.url)
    write_jobs(Jobs(relay.storage))
    write_tables(relay, settings.downstream_name)
    return config


def _window(lo: int, hi: int) -> WindowRecord:
    return WindowRecord(lo, hi, 1, "t", tso.physical_ms(hi), 1, 1, 7)


def _windows(relay: Path) -> None:
    """Write windows as landing leaves them, but without waiting for the disk."""
    step = tso.span(WINDOW_MS)
    made: set[str] = set()
    for number in range(WINDOWS):
        window = _window(END - (WINDOWS - number) * step, END - (WINDOWS - number - 1) * step)
        path = relay / window.path
        if (hour := hour_of(window.lo)) not in made:
            made.add(hour)
            path.parent.mkdir(parents=True)
        path.write_bytes(window.to_json())


def write_archive(
    archive: Archive, end: int = END, hours: int = HOURS, tables: int = TABLES
) -> None:
    """Write so many hours of log and lake that end at a TSO, and SNAPSHOTS snapshots."""
    step = tso.span(3_600_000)
    days: dict[str, list[ArchiveSegment]] = {}
    for number in range(hours):
        lo = end - (hours - number) * step
        segment = _segment(archive, number, lo, lo + step, tables)
        days.setdefault(day_of(segment.lo), []).append(segment)
    follows = None
    for day, segments in days.items():
        document = CatalogueDay(day).changed(segments=tuple(segments), follows=follows)
        archive.catalogue.change(day, partial(_instead, document))
        follows = segments[-1].hi
    for number in range(SNAPSHOTS):
        ts = end - (SNAPSHOTS - number) * (hours // SNAPSHOTS) * step + 1
        held = tuple(
            SnapshotTable(
                "shop",
                f"t{n}",
                Table(n, 1, "shop", f"t{n}").to_json(),
                (SnapshotFile(f"snapshots/{ts}-t/{n}/1.parquet", 1, 1, 1, 1),),
            )
            for n in range(tables)
        )
        archive.snapshots.publish(ArchiveSnapshot(f"{ts}-t", ts, 7, 1, 0, "tidb", (), held))


def _segment(archive: Archive, number: int, lo: int, hi: int, tables: int) -> ArchiveSegment:
    """Return an hour, with a DDL, in which a part of the tables were changed."""
    step = (hi - lo) // MINUTES
    windows = [
        _window(lo + n * step, lo + (n + 1) * step if n < MINUTES - 1 else hi)
        for n in range(MINUTES)
    ]
    table = Table(number % tables, 1, "shop", f"t{number % tables}")
    ddl = DdlJob(
        lo + 1, query="ALTER TABLE", type=Action.ADD_COLUMN, effect=DdlEffect({}, {table.id: table})
    )
    windows[0] = replace(windows[0], ddls=(ddl.to_json(),), tables={str(table.id): table.to_json()})
    index = SegmentIndex(lo, hi, 1, None, 0, tuple(IndexedWindow(window, ()) for window in windows))
    file = write_index(archive.storage, f"log/{number}.windows", index)
    changed = {n % tables: 7 for n in range(number * CHANGED, (number + 1) * CHANGED)}
    lake = tuple(
        LakeFile(f"lake/shop/t{n}/{number}.parquet", 9, 7, 5, "shop", f"t{n}", n, 7, "d")
        for n in changed
    )
    return ArchiveSegment(
        lo, hi, 1, "t", 0, MINUTES, 1, 7 * CHANGED, number, 0, None, file, lake, changed
    )


def _instead(document: CatalogueDay, _: CatalogueDay) -> CatalogueDay:
    return document


def write_jobs(jobs: Jobs) -> None:
    """Write JOBS backfills that are done, the newest of all tables."""
    for number in range(JOBS):
        job = jobs.create("backfill", {}, WriteScope("there", (f"shop.t{number}",)), "an operator")
        with job.run(Runner("a test")) as run:
            tables = TABLES if number == JOBS - 1 else 10
            run.set_totals(
                {f"shop.t{n}": TableProgress(JobCounts(), 100, 10, 100) for n in range(tables)}
            )
            run.end(DONE, result={"tables": tables})


def write_tables(relay: RelayLog, downstream: str) -> None:
    """Write counters and verifications of all tables."""
    counts = {
        f"shop.t{n}": TableCount(n, 1, 2, END - tso.span(n), tso.physical_ms(END))
        for n in range(TABLES)
    }
    CounterStore(relay).add_tables(source_of(downstream), counts, "a test", 1)
    at_ms = tso.physical_ms(END)
    verified = tuple(
        TableVerified(name, END, at_ms, 1, 1, 0, "upstream", "verify-1") for name in counts
    )
    Verifications(relay).note(VerifiedRun("verify-1", END, at_ms, 1.0, "upstream", verified))


def main(folder: Path) -> None:
    """Make the pipeline and measure."""
    config = folder / "sluice.toml"
    if not config.exists():
        large_pipeline(folder)
    os.environ["SLUICE_CONFIG"] = str(config)
    settings = load_settings(config)
    relay, archive = settings.open_relay(), Archive.open(settings.archive_url)
    if not archive.storage.names("summaries"):
        print(
            f"{'no summaries':<14} {_seconds(lambda: archive_status(settings)):6.2f} s", flush=True
        )
    refresh_summaries(relay, archive)
    for name, arguments in (
        ("sluice status", ("-m", "sluice.cli", "status")),
        ("first overview", ("-c", _FIRST_OVERVIEW)),
        ("Python alone", ("-c", "import sluice.cli")),
    ):
        wall_s, cpu_s = _process(*arguments)
        print(f"{name:<14} {wall_s:6.2f} s, {cpu_s:.2f} s of CPU time", flush=True)
    for name, ask in _questions().items():
        print(
            f"{name:<14} {_seconds(ask):6.2f} s, then"
            f" {min(_seconds(ask) for _ in range(3)):6.2f} s",
            flush=True,
        )


def _process(*arguments: str) -> tuple[float, float]:
    """Run Python with these arguments; return its wall and CPU seconds, the least of three runs."""
    found = []
    for _ in range(3):
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
        assert done.stdout or not done.returncode, done.stderr  # status fails: PD is away
        wall_s = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append((wall_s, cpu_s))
    return min(found)


def _questions() -> dict[str, Callable[[], Any]]:
    from sluice.etl.operate.overview import overview
    from sluice.etl.settings.pipelines import pipelines

    jobs = importlib.import_module("sluice.pages.job_list")
    pipeline = pipelines()[""]
    settings = pipeline.settings
    return {
        "overview": lambda: overview(settings, 0.5),
        "jobs": lambda: jobs.jobs_document(pipeline),
        "a job": lambda: jobs.job_document(pipeline, f"backfill-{JOBS}", ""),
        "time": lambda: archive_status(settings),
        **_questions_of_the_past(pipeline),
    }


def _questions_of_the_past(pipeline: NamedPipeline) -> dict[str, Callable[[], Any]]:
    from sluice.etl.history.find import SearchQuery
    from sluice.etl.history.tables import TableSelection

    lists = importlib.import_module("sluice.pages.table_list")
    past = importlib.import_module("sluice.pages.past_transactions")
    sorted_by_changes = TableSelection("t9", "", "changes", down=True)
    ever, middle = 1 << 62, END - tso.span(WINDOWS * WINDOW_MS // 2)
    return {
        "tables": lambda: lists.tables_document(
            *lists.known_tables_and_replica(pipeline), sorted_by_changes
        ),
        "a table's DDL": lambda: lists.history_document(pipeline, "shop.t7", ""),
        "newest": lambda: past.found_document(pipeline, SearchQuery(0, ever, limit=50), keys=True),
        "a table's": lambda: past.found_document(
            pipeline, SearchQuery(0, middle, ("shop.t7",), limit=50), keys=True
        ),
        "a key's": lambda: past.found_document(
            pipeline, SearchQuery(0, middle, key="7", limit=50), keys=True
        ),
    }


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(made))
