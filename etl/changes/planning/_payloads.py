"""Describe windows for `prepare`: made on the driver, sent to a worker as JSON, read there.

These classes know the keys. The parts that a window record has too are
`sluice.etl.changes.recorded_schema`'s and `relay.Part`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sluice.etl.changes.channels import Channels
from sluice.etl.changes.messages import MessageFormat
from sluice.etl.changes.planning._lost_changes import LostChange
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import Filter, Routes
from sluice.relay import REPLACE, SKIP, Override, Part, RecordEncoder, WindowRecord, read_records
from sluice.tidb.ddl_actions import REMOVES_PARTITIONS
from sluice.tidb.ddl_schema_versions import LONGEST_STATEMENT

Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Settings for every window of a run. They travel to Spark's workers: no secrets."""

    write_plan: str = "net"
    """The write planner of the sink, see `sluice.etl.changes.write_plans`."""
    workers: int = 1
    """Sessions that write in parallel, for the planner `groups`."""
    time_zone: str = "UTC"
    """The zone in which `file_binlog` and `kafka_binlog` write TIMESTAMPs."""
    filters: Filter = field(default_factory=Filter)
    routes: Routes = field(default_factory=Routes)
    ignored_ts: frozenset[int] = frozenset()
    """Commit timestamps of transactions and DDL that don't go downstream.

    The schema is kept up to date all the same.
    """
    without_rows: frozenset[int] = frozenset()
    """Ids of tables of which no row changes go downstream; DDL about them does."""
    message_format: MessageFormat = field(default_factory=MessageFormat)
    """The format in which `kafka_messages` writes."""
    channels: Channels | None = None
    """What becomes of transactions with a mark; None: no marks are looked for."""


@dataclass(frozen=True, slots=True)
class WindowPayload:
    """A window, or the stretch `(after_ts, hi]` of it that is to be applied."""

    lo: int
    hi: int
    after_ts: int
    """TSO of a checkpoint: what was committed through it is excluded."""
    parts: Parts
    schema: RecordedSchema
    """The window's schemas as far as `hi`; its DDL through `after_ts` is there too."""

    @classmethod
    def from_window(
        cls, window: WindowRecord, after_ts: int | None = None, until_ts: int | None = None
    ) -> WindowPayload:
        """Return the window's payload without commits through `after_ts` and after `until_ts`."""
        hi = window.hi if until_ts is None else min(window.hi, until_ts)
        schema = RecordedSchema.from_window(window).through(hi)
        return cls(window.lo, hi, max(window.lo, after_ts or 0), window.parts, schema)

    def ddl_started_before(self) -> dict[int, int]:
        """Return DDL inside whose first rows may lie in windows before, by commit_ts.

        The values are the timestamps (TSO) behind which these lie.
        """
        return {
            ddl.commit_ts: ddl.began_ts
            for ddl in self.schema.ddls
            if len(ddl.versions) > 1
            and ddl.commit_ts > self.after_ts
            and ddl.type in REMOVES_PARTITIONS
            and ddl.began_ts < self.lo
        }

    def recount_from(self) -> dict[int, int]:
        """Return DDL before the window on which changes inside depend, by job.

        The changes depend on what came between. The values are the timestamps (TSO) behind which
        they lie.
        """
        return {
            move.job_id: move.began_ts
            for move in self.schema.moved
            if move.type in REMOVES_PARTITIONS
            and not move.asked
            and move.finished_ts + LONGEST_STATEMENT > self.after_ts
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "lo": self.lo,
            "hi": self.hi,
            "after_ts": self.after_ts,
            "parts": _parts_to_json(self.parts),
            "schema": self.schema.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WindowPayload:
        """Read what `to_json` has written."""
        return cls(
            document["lo"],
            document["hi"],
            document["after_ts"],
            _parts_from_json(document["parts"]),
            RecordedSchema.from_json(document["schema"]),
        )


@dataclass(frozen=True, slots=True)
class InFlightPayload:
    """Changes through `until` (TSO) may be downstream, except the transactions `left_out`."""

    until: int
    left_out: frozenset[int] = frozenset()

    def to_json(self) -> dict[str, Any]:
        return {"until": self.until, "left_out": sorted(self.left_out)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> InFlightPayload:
        """Read what `to_json` has written."""
        return cls(document["until"], frozenset(document["left_out"]))


@dataclass(frozen=True, slots=True)
class SharedPayload:
    """All rows committed at `ts` (TSO), and the DDL of `jobs` there, are downstream already.

    With `channels` only rows from these.
    """

    ts: int
    jobs: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"ts": self.ts, "jobs": list(self.jobs), "channels": list(self.channels)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` has written."""
        return cls(document["ts"], tuple(document["jobs"]), tuple(document["channels"]))


@dataclass(frozen=True, slots=True)
class RecountRange:
    """Applied changes behind a DDL that emptied partitions: `parts` behind `after_ts` (TSO).

    `job_id`: the DDL's.
    """

    job_id: int
    after_ts: int
    parts: Parts

    def to_json(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "after_ts": self.after_ts,
            "parts": _parts_to_json(self.parts),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RecountRange:
        """Read what `to_json` has written."""
        return cls(document["job_id"], document["after_ts"], _parts_from_json(document["parts"]))


@dataclass(frozen=True, slots=True)
class BatchPayload:
    """Windows that follow one another and are prepared together."""

    windows: tuple[WindowPayload, ...] = ()
    safe: bool = False
    """Prepared for safe mode."""
    in_flight: InFlightPayload | None = None
    """An in-flight batch that was interrupted and is written again."""
    skipped: frozenset[int] = frozenset()
    """Transactions that operators skip, beside PrepareOptions.ignored_ts, named as there."""
    replaced: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Statements that operators have executed in place of a DDL, by its name (`Override.named`)."""
    behind: Mapping[int, tuple[Parts, ...]] = field(default_factory=dict)
    """Parts of earlier windows for DDL inside that drops partitions, by commit_ts.

    They are the parts of each window before the first one since the DDL began, see
    `WindowPayload.ddl_started_before`.
    """
    counted_before: tuple[RecountRange, ...] = ()
    """See `WindowPayload.recount_from`; for the first window."""
    tables_under_repair: frozenset[int] = frozenset()
    """Ids of tables of which rows may be missing downstream, until a job has brought them."""
    rows: int | None = None
    """The number of changes of the last window to prepare, from the first on; None: all."""
    begun: SharedPayload | None = None
    """The part of the timestamp behind `after_ts` that is downstream already."""
    cut_tables: int | None = None
    """Tables in one downstream transaction if changes are in very many; None: no limit."""
    contested: bool = False
    """Set if the downstream's applications may have changed the same rows, and the last wins."""
    lost: tuple[LostChange, ...] = ()
    """What lost against changes of the downstream."""

    @classmethod
    def from_windows(
        cls,
        windows: Iterable[WindowRecord],
        after_ts: int | None = None,
        until_ts: int | None = None,
    ) -> BatchPayload:
        """Build from records, see `WindowPayload.from_window`."""
        return cls(
            tuple(WindowPayload.from_window(window, after_ts, until_ts) for window in windows)
        )

    @property
    def after_ts(self) -> int:
        """Return the commit_ts behind which the batch begins."""
        return self.windows[0].after_ts if self.windows else 0

    @property
    def bytes(self) -> int:
        """Return the bytes of the parts that preparing reads from the relay log."""
        return sum(part.bytes for part in self._read())

    @property
    def changes(self) -> int:
        """Return the number of row changes that preparing reads."""
        return sum(part.rows for part in self._read())

    def _read(self) -> Iterator[Part]:
        for window in self.windows:
            yield from window.parts
        for windows in self.behind.values():
            for parts in windows:
                yield from parts
        for counted in self.counted_before:
            yield from counted.parts

    def decided(self, overrides: Sequence[Override]) -> BatchPayload:
        """Return the batch with the operators' overrides."""
        return replace(
            self,
            skipped=frozenset(one.named for one in overrides if one.action == SKIP),
            replaced={one.named: tuple(one.sql) for one in overrides if one.action == REPLACE},
        )

    def written_of(self, ignored: Iterable[int]) -> frozenset[int]:
        """Return transactions that the in-flight batch may have written before being ignored."""
        if self.in_flight is None:
            return frozenset()
        return (
            frozenset(ts for ts in ignored if ts <= self.in_flight.until) - self.in_flight.left_out
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "windows": [window.to_json() for window in self.windows],
            "safe": self.safe,
            "in_flight": self.in_flight.to_json() if self.in_flight is not None else None,
            "skipped": sorted(self.skipped),
            "replaced": {str(commit_ts): list(sql) for commit_ts, sql in self.replaced.items()},
            "behind": {
                str(commit_ts): [_parts_to_json(parts) for parts in windows]
                for commit_ts, windows in self.behind.items()
            },
            "counted_before": [counted.to_json() for counted in self.counted_before],
            "tables_under_repair": sorted(self.tables_under_repair),
            "rows": self.rows,
            "begun": self.begun.to_json() if self.begun is not None else None,
            "cut_tables": self.cut_tables,
            **({"contested": True, "lost": self.lost} if self.contested else {}),
        }

    def to_text(self) -> str:
        """Return the JSON for a worker, which has each distinct table once."""
        document = self.to_json()
        schemas = RecordEncoder()
        for window in document["windows"]:
            schemas.add(window.pop("schema"))
        return schemas.to_text(document)

    @classmethod
    def from_text(cls, text: str) -> BatchPayload:
        """Return the inverse of `to_text`."""
        schemas, document = read_records(text)
        for window, schema in zip(document["windows"], schemas, strict=True):
            window["schema"] = schema
        return cls.from_json(document)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BatchPayload:
        """Read what `to_json` has written."""
        return cls(
            tuple(WindowPayload.from_json(window) for window in document["windows"]),
            document["safe"],
            (
                InFlightPayload.from_json(document["in_flight"])
                if document["in_flight"] is not None
                else None
            ),
            frozenset(document["skipped"]),
            {int(commit_ts): tuple(sql) for commit_ts, sql in document["replaced"].items()},
            {
                int(commit_ts): tuple(_parts_from_json(parts) for parts in windows)
                for commit_ts, windows in document["behind"].items()
            },
            tuple(RecountRange.from_json(counted) for counted in document["counted_before"]),
            frozenset(document["tables_under_repair"]),
            document["rows"],
            SharedPayload.from_json(document["begun"]) if document["begun"] is not None else None,
            document["cut_tables"],
            document.get("contested", False),
            tuple(LostChange.from_json(each) for each in document.get("lost", ())),
        )


def _parts_to_json(parts: Parts) -> list[dict[str, Any]]:
    return [part.to_dict() for part in parts]


def _parts_from_json(documents: Iterable[Mapping[str, Any]]) -> Parts:
    return tuple(Part.from_dict(document) for document in documents)
