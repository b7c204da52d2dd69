"""List the causes of which people are notified, from how replication stands and a task's error."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from sluice.etl.display_units import format_duration, format_size
from sluice.etl.operate.overview import IDLE, PAUSED, WORKING, Overview
from sluice.relay.notices import Notice

__all__ = ["KINDS", "Causes", "Disks", "PumpDisk", "TaskReport", "find_causes"]

REFUSED, STOPPED, BEHIND, DIFFERENCES, DRILL, DISK, JOB, WAITS, TASK = KINDS = (
    "refused",
    "stopped",
    "behind",
    "differences",
    "drill",
    "disk",
    "job",
    "waits",
    "task",
)
"""Kinds of causes. `stopped` includes late commits, `task` is an error that no state shows."""
_MIN_FREE_BYTES, _MIN_FREE_DAYS = 5e9, 3.0
"""As the alert SluiceDiskFull has them."""
_OVER_RATIO = 1.25
"""A disk has this much more before its cause is over, so that one at the limit isn't news daily."""
_TASK_MEMORY_MS = 86_400_000
"""An error that no state shows is notified again if a task fails with it a day after the last."""
_ROOM_BYTES = 1e9
"""A disk that was full and has so much room again is no longer full."""
_FULL, _RELAY_DISK, _PUMP_DISK = f"{DISK}:full", f"{DISK}:relay", f"{DISK}:pump:"
_DISK_FULL = "No space left on device"
_COMMAND = re.compile(r"`(sluice [^`]+)`")
_WAITING_TASK = {"the task land": "land", "landing": "land", "the task apply": "apply"} | {
    "applying": "apply"
}
_MAX_TEXT_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class PumpDisk:
    """Free bytes on a pump's disk, and whether it takes binlogs, as its metrics have them."""

    node_id: str
    free_bytes: float
    is_writable: bool


@dataclass(frozen=True, slots=True)
class Disks:
    """The disks, as far as they are known.

    `free_bytes` of the fullest of relay log and archive, `full_in_days`: until one is full, None:
    unknown or never; `pumps`: those that answered.
    """

    free_bytes: int | None = None
    full_in_days: float | None = None
    pumps: tuple[PumpDisk, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task's failure, or that it `waits` for something that may pass.

    `dag` is the DAG's kind, `task` the task's id; `text` is the error's message with its hint.
    """

    dag: str
    task: str
    text: str
    hint: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes that last at one time, by key, and what wasn't known then."""

    found: dict[str, Notice]
    seen: Overview
    unknown_kinds: frozenset[str]
    disks: Disks

    def has_ended(self, notice: Notice) -> bool:
        """Return whether a cause that isn't among those found is over."""
        if notice.kind in self.unknown_kinds:
            return False
        if notice.kind == TASK:
            return self.seen.at_ms - notice.seen_ms > _TASK_MEMORY_MS
        if notice.kind == WAITS:
            return self._goes_on(notice)
        if notice.kind == DISK:
            return self._has_room(notice)
        if notice.kind in (JOB, DRILL):  # while the next attempt is under way, its outcome decides
            kind = notice.key.split(":")[1]
            return not any(it["kind"] == kind and it["state"] != "failed" for it in self.seen.jobs)
        return True

    def _has_room(self, notice: Notice) -> bool:
        pump = notice.key.removeprefix(_PUMP_DISK)
        if pump != notice.key:
            return any(disk.node_id == pump for disk in self.disks.pumps)
        free = self.disks.free_bytes
        return free is not None and (notice.key != _FULL or free > _ROOM_BYTES)

    def _goes_on(self, notice: Notice) -> bool:
        part = {"land": self.seen.landing.state, "apply": self.seen.downstream.state}.get(
            notice.key.split(":")[1]
        )
        if part is None:
            return self.seen.at_ms - notice.seen_ms > _TASK_MEMORY_MS
        return part in (WORKING, IDLE)


def find_causes(
    seen: Overview,
    *,
    max_lag_ms: float,
    known: Iterable[Notice] = (),
    disks: Disks | None = None,
    report: TaskReport | None = None,
) -> Causes:
    """Return the causes that last now.

    `max_lag_ms`: the lag from which on people are notified; `known`: what lasted before;
    `disks`: None if they were not looked at.
    """
    lasting = [one for one in known if not one.over_ms]
    keys = {one.key for one in lasting}
    causes = [
        *_stops(seen, keys),
        *_differences(seen),
        *_failed_jobs(seen),
        *_disks(keys, disks or Disks()),
    ]
    if report is not None and not any(cause.explains(report) for cause in causes):
        causes.append(_reported(report))
    found = {cause.notice.key: cause.notice for cause in reversed(causes)}
    found |= {one.key: one for one in _lag(seen, [*found.values(), *lasting], max_lag_ms)}
    return Causes(found, seen, frozenset(_unknown_kinds(seen)), disks or Disks())


@dataclass(frozen=True, slots=True)
class _Cause:
    """A notice, with the task that it stops, and what an error has in its text because of it."""

    notice: Notice
    task: str = ""
    error: str = ""
    dags: tuple[str, ...] = ()

    def explains(self, report: TaskReport) -> bool:
        if self.dags and report.dag not in self.dags:
            return False
        is_of_task = bool(self.task) and report.task == self.task and not report.waits
        return is_of_task or (bool(self.error) and self.error in report.text)


def _stops(seen: Overview, known: Collection[str]) -> Iterator[_Cause]:
    refused, token = seen.downstream.refused, seen.downstream.refusal
    has_refusal = bool(refused)
    if refused:
        hint = f"compare the table (`sluice verify`), then `sluice accept {token}`"
        text = f"the downstream refused changes: {refused}"
        yield _Cause(_notice(f"{REFUSED}:{token}", text, "sluice status", hint), "apply", refused)
    elif "downstream" in seen.errors:
        has_refusal = any(key.startswith(f"{REFUSED}:") for key in known)
    for failure in seen.failures:
        what, message, hint = failure["what"], failure["message"], failure["hint"]
        if what == "apply" and has_refusal:
            continue
        key = f"{STOPPED}:{what}:{_fingerprint(message)}"
        command = _command_of(hint) or "sluice status"
        notice = _notice(key, f"{what} has stopped: {message}", command, hint)
        yield _Cause(notice, what, message)


def _differences(seen: Overview) -> Iterator[_Cause]:
    for table in seen.verified.differing:
        hint = f"`sluice verify {table} --repair --apply` makes them right"
        text = f"rows of {table} differ from the upstream"
        command = f"sluice verify {table}"
        notice = _notice(f"{DIFFERENCES}:{table}", text, command, hint, "tables")
        yield _Cause(notice, error=table, dags=("verify", "verify_continuously"))


def _failed_jobs(seen: Overview) -> Iterator[_Cause]:
    for job in seen.jobs:
        if job["state"] != "failed":
            continue
        kind = DRILL if job["kind"] == "drill" else JOB
        what = "the restore drill" if kind == DRILL else "the job"
        notice = _notice(
            f"{kind}:{job['kind']}:{_fingerprint(job['message'])}",
            f"{what} {job['id']} failed: {job['message']}",
            f"sluice jobs show {job['id']}",
            job["hint"],
            f"jobs#job-{job['id']}",
        )
        yield _Cause(notice, error=job["message"])


def _disks(known: Collection[str], disks: Disks) -> Iterator[_Cause]:
    free, days = disks.free_bytes, disks.full_in_days
    ratio = _OVER_RATIO if _RELAY_DISK in known else 1.0
    fills = days is not None and days < _MIN_FREE_DAYS * ratio
    if free is not None and (fills or free < _MIN_FREE_BYTES * ratio):
        when = f", and is full in about {days:.1f} days" if days is not None else ""
        text = f"the disk of relay log or archive has {format_size(free)} left{when}"
        hint = "make room, or shorten [relay] keep, [archive] keep or snapshots-keep"
        yield _Cause(_notice(_RELAY_DISK, text, "sluice archive status", hint, "time"))
    for pump in disks.pumps:
        key = f"{_PUMP_DISK}{pump.node_id}"
        ratio = _OVER_RATIO if key in known else 1.0
        if not pump.is_writable or pump.free_bytes < _MIN_FREE_BYTES * ratio:
            state = "" if pump.is_writable else ", and refuses binlogs"
            left = format_size(pump.free_bytes)
            text = f"the disk of pump {pump.node_id} has {left} left{state}"
            hint = "make room on the pump's disk, or shorten its gc; it goes on by itself"
            yield _Cause(_notice(key, text, "sluice pumps list", hint))


def _lag(seen: Overview, others: Iterable[Notice], max_lag_ms: float) -> Iterator[Notice]:
    """Yield the lag as a cause; it is quiet where it follows from another cause or a pause."""
    there = {one.key: one.kind for one in others}
    lag_ms, kinds, is_full = seen.lag_ms, set(there.values()), _FULL in there
    limit = max_lag_ms / 2 if BEHIND in kinds else max_lag_ms
    if lag_ms is None or lag_ms <= limit:
        return
    is_paused = PAUSED in (seen.landing.state, seen.downstream.state)
    text = f"the downstream is {format_duration(lag_ms / 1000)} behind"
    hint = "its last lines say what holds replication back"
    is_quiet = is_paused or is_full or bool(kinds & {REFUSED, STOPPED, WAITS})
    yield replace(_notice(BEHIND, text, "sluice top --once", hint), is_quiet=is_quiet)


def _reported(report: TaskReport) -> _Cause:
    text, hint = report.text, report.hint
    if report.waits and _DISK_FULL in text:
        return _Cause(_notice(_FULL, text, "sluice archive status", hint, "time"))
    if report.waits:
        who = text.partition(" has waited")[0]
        key = f"{WAITS}:{_WAITING_TASK.get(who, who)}:{_fingerprint(text)}"
        return _Cause(_notice(key, text, "sluice status", hint))
    key = f"{TASK}:{report.dag}:{report.task}:{_fingerprint(text)}"
    text = f"the task {report.task} of the DAG {report.dag} failed: {text}"
    return _Cause(_notice(key, text, _command_of(hint) or "sluice doctor", hint, "doctor"))


def _unknown_kinds(seen: Overview) -> Iterator[str]:
    for source, kinds in (
        ("relay", KINDS),
        ("orders", (STOPPED, JOB, DRILL)),
        ("downstream", (REFUSED, BEHIND)),
        ("verified", (DIFFERENCES,)),
    ):
        if source in seen.errors:
            yield from kinds


def _notice(key: str, text: str, command: str, hint: str, page: str = "overview") -> Notice:
    text = text[:_MAX_TEXT_CHARS]
    if hint and hint not in text:
        text = f"{text}\nHint: {hint}"
    return Notice(key, key.partition(":")[0], text, command, page)


def _command_of(hint: str) -> str:
    """Return the first command that a hint names, "" if it names none."""
    found = _COMMAND.search(hint)
    return found[1] if found else ""


def _fingerprint(text: str) -> str:
    """Return a short name of a message, the same whatever durations and counts it has."""
    without = re.sub(r"\d+(?:[.,]\d+)*(?= (?:s|ms|min|h|attempts|rows)\b)", "", text)
    return hashlib.sha256(without.encode()).hexdigest()[:16]
