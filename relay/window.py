"""The window record: what the manifest keeps of a landed window.

A record is one JSON object with a checksum, see `sluice.relay.checksummed`. Schemas and DDL effects
are opaque here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.json_cache import JsonMemberCache
from sluice.relay.part_descriptor import Part
from sluice.tidb import tso

FORMAT, CAPTURED_FORMAT = 1, 2
"""The second is of windows with transactions that share a commit_ts: earlier versions drop one."""
_table_cache = JsonMemberCache()


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A landed window `(lo, hi]` of commit timestamps (TSO)."""

    lo: int
    hi: int
    cluster_id: int
    token: str
    """The token of the run that landed it."""
    landed_ms: int
    """Unix time in ms."""
    transactions: int
    changes: int
    schema_version: int
    """TiDB's schema version after the window's DDL."""
    parts: tuple[Part, ...] = ()
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Table id (decimal string) to the table as of lo.

    It has every table that existed then and has rows inside.
    """
    ddls: tuple[Mapping[str, Any], ...] = ()
    """DDL by commit_ts, which several may share; see docs/reference/files-on-disk.md."""
    truncated_tables: tuple[int, ...] = ()
    """Ids with rows inside that belong to tables truncated before: these rows are to be dropped."""
    timings_ms: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[Mapping[str, Any], ...] = ()
    """Transactions that operators had landing leave out: {commit_ts, start_ts, why}. Written only
    if there are any.
    """

    moved: tuple[Mapping[str, Any], ...] = ()
    """DDL before lo that moved rows away (partitions dropped, truncated, exchanged) and by which
    some of the rows inside are still written as if it had not happened. Written only if there are
    any.
    """
    relaxed: Mapping[str, Any] = field(default_factory=dict)
    """Table id (decimal string) to the ids of its unique indexes that the upstream, though they are
    in `tables`, doesn't hold to any more; none, if they hold but for rows of partitions that are
    about to be dropped. Written only if there are any.
    """
    doubled: Mapping[str, Any] = field(default_factory=dict)
    """Table id (decimal string) of each table that a job reorganizes behind hi: whether TiDB has
    written rows twice under different hidden row ids. Written only if there are any.
    """
    is_captured: bool = False
    """Whether a pump captured its transactions from TiKV, so that several may share a commit_ts.

    Written only if so.
    """

    @property
    def path(self) -> str:
        return window_path(self.lo)

    def to_json(self) -> bytes:
        """Return the record as its file has it."""
        version = CAPTURED_FORMAT if self.is_captured else FORMAT
        return encode_checksummed({"format": version, **self.to_dict()}, {"tables": _table_cache})

    def to_dict(self) -> dict[str, Any]:
        """Return the record's members, as JSON values."""
        record: dict[str, Any] = {
            "lo": self.lo,
            "hi": self.hi,
            "cluster_id": self.cluster_id,
            "token": self.token,
            "landed_ms": self.landed_ms,
            "transactions": self.transactions,
            "changes": self.changes,
            "schema_version": self.schema_version,
            "parts": [part.to_dict() for part in self.parts],
            "tables": dict(self.tables),
            "ddls": [dict(ddl) for ddl in self.ddls],
            "truncated_tables": list(self.truncated_tables),
            "timings_ms": dict(self.timings_ms),
        }
        if self.skipped:
            record["skipped"] = [dict(entry) for entry in self.skipped]
        if self.moved:
            record["moved"] = [dict(entry) for entry in self.moved]
        if self.relaxed:
            record["relaxed"] = dict(self.relaxed)
        if self.doubled:
            record["doubled"] = dict(self.doubled)
        if self.is_captured:
            record["is_captured"] = True
        return record

    @classmethod
    def from_json(cls, data: bytes) -> WindowRecord:
        """Parse a record.

        Strict: raises ValueError on a wrong checksum, format, field, type or order.
        """
        return cls.from_dict(decode_checksummed(data, CAPTURED_FORMAT, ("tables", _table_cache)))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> WindowRecord:
        """Parse what `to_dict` returned, and take its members over.

        Raises ValueError as `from_json`.
        """
        raw.setdefault("skipped", [])
        raw.setdefault("moved", [])
        raw.setdefault("relaxed", {})
        raw.setdefault("doubled", {})
        raw.setdefault("is_captured", False)
        known = {entry.name for entry in fields(cls)}
        if set(raw) != known:
            raise ValueError(f"the record has the fields {sorted(raw)}, expected {sorted(known)}")
        for name in (
            "lo",
            "hi",
            "cluster_id",
            "landed_ms",
            "transactions",
            "changes",
            "schema_version",
        ):
            _expect(raw, name, int)
        _expect(raw, "token", str)
        _expect(raw, "is_captured", bool)
        for name in ("tables", "timings_ms", "relaxed", "doubled"):
            _expect(raw, name, dict)
        for name, kind in (
            ("parts", dict),
            ("ddls", dict),
            ("truncated_tables", int),
            ("skipped", dict),
            ("moved", dict),
        ):
            _expect(raw, name, list)
            for item in raw[name]:
                if type(item) is not kind:
                    raise ValueError(f"field {name} holds {item!r}, expected {kind.__name__}")
        raw["parts"] = tuple(Part.from_dict(part) for part in raw["parts"])
        raw["ddls"] = tuple(raw["ddls"])
        raw["truncated_tables"] = tuple(raw["truncated_tables"])
        raw["skipped"] = tuple(raw["skipped"])
        raw["moved"] = tuple(raw["moved"])
        window = cls(**raw)
        window.check()
        return window

    def check(self) -> None:
        """Check that the record doesn't contradict itself. Raises ValueError."""
        if not 0 <= self.lo < self.hi:
            raise ValueError(f"the window ({self.lo}, {self.hi}] is empty or turned round")
        for part in self.parts:
            if not self.lo < part.min_commit_ts <= part.max_commit_ts <= self.hi:
                raise ValueError(
                    f"part {part.path} lies outside of the window ({self.lo}, {self.hi}]"
                )
        last = self.lo
        for ddl in self.ddls:
            commit_ts = ddl.get("commit_ts")
            if type(commit_ts) is not int or not self.lo < commit_ts <= self.hi or commit_ts < last:
                raise ValueError(f"DDL commit_ts {commit_ts} is outside of ({last}, {self.hi}]")
            last = commit_ts


def _expect(raw: Mapping[str, Any], name: str, kind: type) -> None:
    if type(raw[name]) is not kind:
        raise ValueError(f"field {name} is {raw[name]!r}, expected {kind.__name__}")


def hour_of(ts: int) -> str:
    """Return the UTC hour of a TSO, as the directories are named: ``2026-11-21T09``."""
    return tso.to_datetime(ts).strftime("%Y-%m-%dT%H")


def window_path(lo: int) -> str:
    """Return the path of the record of the window that begins at lo."""
    return f"windows/{hour_of(lo)}/{lo:020d}.json"
