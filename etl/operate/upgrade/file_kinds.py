"""The kinds of files in a relay log and in an archive, and by what each is read.

docs/reference/files-on-disk.md describes them. A kind's parser is the one of the program itself: it
finds what a format's number doesn't show, a file that was damaged or has a member that this version
doesn't know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.relay import AlignedChunk, Control, Failure, Override, Ownership, StopMark, TableRepair
from sluice.relay import format_version as whole
from sluice.relay.archive import Pin, RemovalMark, snapshot_manifest
from sluice.relay.archive.catalogue import CatalogueDay
from sluice.relay.archive.index import SegmentIndex
from sluice.relay.archive.snapshots import parse_manifest
from sluice.relay.audit import AuditEntry
from sluice.relay.jobs import JobSpec, StateEntry, TableProgress, WorkerProgress
from sluice.relay.jobs.open_jobs import OpenJobs
from sluice.relay.json_codec import from_bytes
from sluice.relay.known_pumps import PumpsDocument
from sluice.relay.landed_masks import parse as parse_masks
from sluice.relay.notices import Notice
from sluice.relay.quality import QualityRun
from sluice.relay.rule_changes import parse as parse_rules
from sluice.relay.schema_snapshots import parse_schema_snapshot
from sluice.relay.service_lease import LeaseEntry
from sluice.relay.verification_log import TableVerified, VerifiedRun, VerifierStatus
from sluice.relay.window import CAPTURED_FORMAT, WindowRecord

__all__ = ["ARCHIVE", "RELAY_LOG", "FileKind", "Place"]

Parser = Callable[[bytes], object]
_N, _NAME, _TS = r"\d{12}", r"[^/]+", r"\d{20}"
_SUMMARY_FORMAT = 2


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: the paths it has, the newest format that this version reads, the parser.

    `is_spare`: readers pass over a file that they can't read, and nothing is lost by that.
    """

    name: str
    paths: re.Pattern[str]
    parse: Parser
    reads: int = whole.FORMAT
    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A relay log or an archive.

    `data`: the paths of files and folders without a format of their own, which the records that
    name them, or `format.json`, stand for.
    """

    name: str
    kinds: tuple[FileKind, ...]
    data: re.Pattern[str]

    def kind_of(self, path: str) -> FileKind | None:
        """Return the kind of the file at a path, None if this version knows no such file."""
        return next((kind for kind in self.kinds if kind.paths.fullmatch(path)), None)


def _kind(name: str, paths: str, parse: Parser, **more: Any) -> FileKind:
    return FileKind(name, re.compile(paths), parse, **more)


def _document(data: bytes) -> object:
    return whole.parse_json(data, "the document")


def _of(type_: Any, name: str) -> Parser:
    return lambda data: from_bytes(type_, data, name)


def _summary(data: bytes) -> object:
    found = json.loads(data)
    if error := whole.newer_format_error("the summary", found.get("format"), _SUMMARY_FORMAT):
        raise error
    return found


_WHOLE = _kind("all of it", r"format\.json", _document)
_OVERRIDES = (
    _kind("overrides", rf"overrides/{_TS}(-{_TS})?\.json", Override.from_bytes),
    _kind("overrides' use", rf"overrides/{_TS}(-{_TS})?\.(begun|used)\.json", _document),
)
_SUMMARIES = _kind(
    "summaries", r"summaries/.*\.json", _summary, reads=_SUMMARY_FORMAT, is_spare=True
)

RELAY_LOG = Place(
    "relay log",
    (
        _WHOLE,
        _kind(
            "window records",
            rf"windows/{_NAME}/{_TS}\.json|first-window\.json",
            WindowRecord.from_json,
            reads=CAPTURED_FORMAT,
        ),
        _kind("claims of roles", rf"owners/{_NAME}\.json", _document),
        _kind("service lease", rf"service-lease/{_N}\.json", _of(LeaseEntry, "the lease")),
        _kind("consumer positions", rf"consumers/{_NAME}\.json", _document),
        _kind("schema snapshots", r"schema/\d+\.json\.zst", parse_schema_snapshot, is_spare=True),
        _kind("downstream's owner", r"downstream\.json", Ownership.from_bytes),
        _kind("stop of applying", r"stop\.json", StopMark.from_bytes),
        _kind("known pumps", rf"pumps/{_N}\.json", PumpsDocument.from_bytes),
        _kind("failures", rf"failures/{_NAME}\.json", Failure.from_bytes, is_spare=True),
        _kind(
            "notices",
            rf"notices/{_N}\.json",
            _of(tuple[Notice, ...], "the notices"),
            is_spare=True,
        ),
        _kind("rules applied last", rf"rules/{_N}\.json", parse_rules),
        _kind("masks of what is landed", rf"masks/{_N}\.json", parse_masks),
        _kind("orders", rf"control/{_N}\.json", Control.from_bytes),
        *_OVERRIDES,
        _kind("aligned chunks", rf"aligned-chunks/{_TS}\.json", AlignedChunk.from_bytes),
        _kind("their outcomes", rf"aligned-chunks/{_TS}\.outcome\.json", _document),
        _kind(
            "tables under repair", rf"aligned-chunks/{_NAME}\.repair\.json", TableRepair.from_bytes
        ),
        _kind("open jobs", rf"open-jobs/{_N}\.json", OpenJobs.from_bytes),
        _kind("jobs' requests", rf"jobs/{_NAME}/spec\.json", JobSpec.from_bytes),
        _kind("jobs' states", rf"jobs/{_NAME}/state/{_N}\.json", StateEntry.from_bytes),
        _kind(
            "jobs' totals",
            rf"jobs/{_NAME}/progress/{_NAME}/base\.json",
            _of(dict[str, TableProgress], "the totals of a job"),
        ),
        _kind(
            "jobs' progress", rf"jobs/{_NAME}/progress/{_NAME}/{_NAME}", WorkerProgress.from_bytes
        ),
        _kind("jobs' plans and results", rf"jobs/{_NAME}/{_NAME}\.json", _document),
        _kind(
            "verifications",
            rf"verified/last/{_N}\.json",
            _of(list[TableVerified], "the list of verified tables"),
        ),
        _kind(
            "verification runs",
            rf"verified/runs/{_NAME}\.json",
            VerifiedRun.from_bytes,
            is_spare=True,
        ),
        _kind("verifier's state", r"verified/look\.json", VerifierStatus.from_bytes, is_spare=True),
        _kind("verification's place", r"verified/continuous\.json", _document, is_spare=True),
        _kind("measures", rf"measures/{_NAME}/{_N}\.json", _document, is_spare=True),
        _kind(
            "quality runs",
            rf"quality/{_NAME}\.json",
            _of(list[QualityRun], "the results of a quality run"),
            is_spare=True,
        ),
        _kind(
            "audit log",
            rf"audit(-reads)?/{_N}\.json",
            _of(tuple[AuditEntry, ...], "the audit log"),
        ),
        _SUMMARIES,
    ),
    re.compile(
        rf"parts|loads|archive|results|quality/docs|jobs/{_NAME}/rows|failures/{_NAME}\.go-on"
        rf"|changed|drills\.json"
    ),
)

ARCHIVE = Place(
    "archive",
    (
        _WHOLE,
        _kind("days of the catalogue", rf"days/{_NAME}/{_N}\.json", CatalogueDay.from_bytes),
        _kind("segment indexes", rf"log/{_NAME}/{_NAME}\.windows", SegmentIndex.from_bytes),
        _kind("snapshots", rf"snapshots/{_NAME}/{snapshot_manifest.MANIFEST}", parse_manifest),
        _kind(
            "snapshots being made",
            rf"snapshots/{_NAME}/making\.json",
            snapshot_manifest.PendingSnapshot.from_bytes,
        ),
        *_OVERRIDES,
        _kind("pins", rf"pins/{_NAME}\.json", Pin.from_bytes),
        _kind("removal mark", rf"removal-mark/{_N}\.json", RemovalMark.from_bytes),
        _kind("segments being made", rf"attempts/{_NAME}\.json", _document, is_spare=True),
        _kind("snapshot checks", rf"checked/{_NAME}\.json", _document, is_spare=True),
        _kind("lake definitions", rf"lake-versions/{_NAME}/{_NAME}\.json", _document),
        _SUMMARIES,
    ),
    re.compile(rf"log/{_NAME}/{_NAME}\.parquet|lake|results|snapshots/{_NAME}/(\d+|done)"),
)
