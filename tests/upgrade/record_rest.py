"""Writes every other kind of file of a relay log and an archive, by the program's own code.

They lie in a relay log and an archive of their own: a stop, a failure or a half-made snapshot would
be in the way of what is to go on from the first ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import google_crc32c

from sluice.etl.changes.rules import Filter, RecordedRules, Routes
from sluice.etl.history.archive._pending import PendingSegments
from sluice.etl.history.lake._rows import LakeLayout
from sluice.etl.history.lake._versions import LakeSchemaVersions
from sluice.etl.history.retain.checked import VerifiedSnapshots
from sluice.etl.history.retain.summaries import refresh_summaries
from sluice.etl.operate.upgrade.file_kinds import ARCHIVE, RELAY_LOG
from sluice.etl.verify.continuous_state import ContinuousState, ContinuousStateFile, PendingMismatch
from sluice.relay import (
    SKIP,
    AlignedChunk,
    Failure,
    Override,
    Ownership,
    RelayLog,
    StopMark,
    TableRepair,
    WindowRecord,
)
from sluice.relay.aligned_chunks import ChunkReady, LoadFile
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    Pin,
    Pins,
    SnapshotFile,
    SnapshotStore,
    SnapshotTable,
    snapshot_id,
    sync_overrides,
)
from sluice.relay.audit import AuditLog
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import DONE, JobCounts, Jobs, Runner, TableProgress, WriteScope
from sluice.relay.known_pumps import AnsweredRange, KnownPump, LateCommit
from sluice.relay.landed_masks import LandedMasksLog
from sluice.relay.measures.states import StateHistory, StateSample
from sluice.relay.notices import Notice, Notices
from sluice.relay.quality import FailedExpectation, QualityRun, QualityRuns
from sluice.relay.rule_changes import AppliedRules, OutdatedTable, RuleChanges
from sluice.relay.schema_snapshots import SchemaSnapshots
from sluice.relay.service_lease import ServiceLease
from sluice.relay.verification_log import (
    UPSTREAM,
    TableVerified,
    Verifications,
    VerifiedRun,
    VerifierStatus,
)
from sluice.tidb.schema import Table
from tests.relay.archivekit import archive_all

NOT_WRITTEN = {"all of it"}
"""format.json: no version has written it yet; one whose whole relay log is newer will."""


def record_rest(relay: RelayLog, archive_url: str, table: Table) -> None:
    """Write one of everything; `relay` has windows, `table` is one of theirs."""
    last = relay.last()
    assert last is not None
    _landing(relay, last)
    _orders(relay, last.hi)
    _job(relay, last.hi, table)
    _judgements(relay)
    archive = Archive.open(archive_url)
    archive_all(relay, archive)
    _archive(relay, archive, table)
    refresh_summaries(relay, archive)


def _landing(relay: RelayLog, last: WindowRecord) -> None:
    relay.known_pumps.change(
        lambda seen: replace(
            seen,
            pumps={"pump-1": KnownPump("127.0.0.1:8250", "online")},
            late={last.hi: LateCommit(last.lo, "pump-1", "landed")},
            former=frozenset({"pump-0"}),
            answered={"": AnsweredRange("pump-1", last.lo, last.hi, 10, "")},
        )
    )
    SchemaSnapshots(relay.storage).keep(1, {"version": 1, "tables": []})
    relay.claim("land")
    Consumers(relay).note("other", last.hi, "another pipeline")
    ServiceLease(relay.place).try_acquire()


def _orders(relay: RelayLog, hi: int) -> None:
    relay.change_control(lambda control: replace(control, land_paused=True))
    relay.own(Ownership("85c764aa", "127.0.0.1:3306"))
    relay.stop(StopMark("another process writes", 1))
    relay.failures.note(Failure("apply", "a row is missing", "bring it", 1))
    overrides = [Override(hi + n, SKIP, (), "ann", "too large", 1) for n in (1000, 2000)]
    for override in overrides:
        relay.overrides.add(override)
    relay.overrides.mark_begun(overrides[:1])
    relay.overrides.mark_used(overrides[1:])
    for reads in (False, True):
        audit = AuditLog(relay.place, reads=reads)
        audit.end(audit.begin("ann", "pause-job", "backfill-3"), "done")


def _job(relay: RelayLog, hi: int, table: Table) -> None:
    scope = WriteScope("db:3306", (table.full_name,))
    job = Jobs(relay.storage).create("backfill", {"of": [table.full_name]}, scope, "ann")
    job.save_plan({"tables": [table.full_name]})
    with job.run(Runner("sluice backfill")) as run:
        run.set_totals({table.full_name: TableProgress(bytes_in_all=60)})
        run.did(table.full_name, JobCounts(5, 60, 1))
        run.end(DONE)
    chunk = AlignedChunk(hi + 2000, job.id, 1, table.id, table.schema_name, table.name, made_ms=1)
    relay.aligned_chunks.make(chunk)
    load = LoadFile("loads/1", {"lines": 1}, 5, 0, 60, 1)
    relay.aligned_chunks.settle(chunk.at_ts, ChunkReady(table.to_json(), hi, (load,)))
    relay.aligned_chunks.begin_repair(TableRepair(job.id, job.id, (table.id,), 1))


def _judgements(relay: RelayLog) -> None:
    verified = TableVerified("rnd.plain", 5, 1, 3, 60, 1, UPSTREAM, "verify")
    log = Verifications(relay)
    log.note(VerifiedRun("verify", 5, 1, 1.5, UPSTREAM, (verified,)))
    log.save_status(VerifierStatus(1, 0, 3))
    StateHistory(relay).note(StateSample(1, 60_000.0, None))
    behind = Notice("behind", "behind", "6 min behind", "sluice top --once", "overview")
    Notices(relay.place).take([behind], lambda _: False, 1)
    outdated = OutdatedTable(5, "rnd.plain", "[[filter.rows]] selected other rows", 5, 1)
    rules = RecordedRules.of(Filter(), Routes()).to_text()
    RuleChanges(relay.place).change(lambda _: AppliedRules("9f4e", rules, (outdated,)))
    LandedMasksLog(relay.storage).note("9f4e", 400_000_000_000 << 18, "")
    suspect = PendingMismatch("rnd.plain", "`id` = 1", 5, confirmed=True, keys=["01"], looked_ms=1)
    ContinuousStateFile(relay.place).keep(ContinuousState(5, suspects=[suspect]))
    failed = FailedExpectation("not null", "a", "critical", "1 row")
    QualityRuns(relay.place).note(
        "1700000000000-0123456789ab",
        [
            QualityRun(
                "1", 1, "rnd.plain", "downstream", "failed", 2, 1, "critical", 0.5,
                failures=(failed,),
            )
        ],
        5,
    )  # fmt: skip


def _archive(relay: RelayLog, archive: Archive, table: Table) -> None:
    snapshots, rows = SnapshotStore(archive.storage), b"rows" * 10
    for ts, token in ((400, "a1"), (500, "a2")):
        snapshots.begin(snapshot_id(ts, token), PendingSnapshot("snapshot-1", made_ms=1))
    name = snapshot_id(400, "a1")
    path = f"snapshots/{name}/{table.id}/1.parquet"
    with archive.storage.new_file(path) as file:
        file.write(rows)
    written = SnapshotTable(
        table.schema_name,
        table.name,
        table.to_json(),
        (SnapshotFile(path, 3, len(rows), google_crc32c.value(rows), 90),),
    )
    snapshot = ArchiveSnapshot(
        name, 400, 1, 7, 1, "a test", ({"id": 1, "name": table.schema_name},), (written,)
    )
    snapshots.publish(snapshot)
    VerifiedSnapshots(archive).fault(snapshot)
    Pins(archive.storage).note("restore-1", Pin("a restore", 400, (name,), "restore-1", 500))
    Pins(archive.storage).advance_removal(100, (snapshot_id(300, "a0"),))
    PendingSegments(archive.storage).begin(1, 2)
    LakeSchemaVersions(archive.storage).of(table, LakeLayout.for_table(table), 1)
    sync_overrides(relay.overrides, archive.overrides_of())


def kinds_without_a_file(folder: Path) -> Iterator[str]:
    """The kinds of which the folder of a relay log and of an archive have none."""
    for place, kinds in (("relay", RELAY_LOG), ("archive", ARCHIVE)):
        paths = [
            path.relative_to(folder / place).as_posix()
            for path in (folder / place).rglob("*")
            if path.is_file()
        ]
        found = {kind.name for path in paths if (kind := kinds.kind_of(path)) is not None}
        yield from (
            json.dumps([place, kind.name])
            for kind in kinds.kinds
            if kind.name not in found | NOT_WRITTEN
        )
