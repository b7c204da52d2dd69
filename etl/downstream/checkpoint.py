"""Read and write the checkpoint row: the commit ts through which the downstream is complete.

The table and the JSON are TiDB Binlog's own, so Sluice goes on where a Drainer stopped and the
other way round:

    tidb_binlog.checkpoint(clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)
    {"consistent": true, "commitTS": 1, "ts-map": {}, "schema-version": 0}

One key is ours, and Drainer ignores it: `"sluice": {"owner": "..."}` names the pipeline that wrote
the row, and is gone once a Drainer writes it; `"sluice": {"process": token}` is renewed by every
process that goes on from the row; `"sluice": {"ddl": {...}}` stands there while a DDL statement is
being executed downstream, `"sluice": {"in-flight": {...}}` while several sessions write what comes
after commitTS, `"sluice": {"safe-until": ts}` while changes through that commit timestamp may be
downstream already, left there by a Drainer that wasn't stopped in good order. The protocol is in
docs/explanation/exactly-once.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sluice.errors import SluiceError

FORMAT = 1
"""Format of what Sluice keeps beside a checkpoint; a newer one has `"format": 2`."""

_SHARED_FORMAT = 2
ROW_FORMAT = 3
"""The newest format of the row.

`"sluice": {"format": 2, ...}` while it names a shared timestamp, 3 if that has channels. Without
one the row has no format, which means 1.
"""


class CheckpointError(SluiceError):
    """The checkpoint row can't be read; names cluster and content."""

    hint = "repair the checkpoint row by hand, or remove it to begin where the relay log does"


class NewerCheckpointError(CheckpointError):
    """A newer version of Sluice wrote the checkpoint.

    Going on from it here could lose or repeat changes.
    """

    hint = "install the version of Sluice that wrote it, or a newer one; nothing was changed"


class CheckpointMovedError(SluiceError):
    """The checkpoint isn't where this process left it: another process writes there."""

    hint = (
        "find the other process that writes to this downstream and end it, then let the task go on"
    )


@dataclass(frozen=True, slots=True)
class PendingDdl:
    """A DDL statement that may have been executed; `fingerprint` is of its objects before it."""

    job_id: int
    commit_ts: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class SharedTimestamp:
    """A timestamp right behind the checkpoint: rows and DDL, or several DDL, were committed at it.

    Its rows are downstream, and its DDL of `jobs`. In a ring of clusters rows of several origins
    may have been committed at it: with `channels` only those of these are downstream.
    """

    ts: int
    jobs: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Parse the row's part. Raises KeyError, ValueError, TypeError."""
        return cls(
            int(document["ts"]),
            tuple(map(int, document["jobs"])),
            tuple(map(int, document.get("channels") or ())),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the row's part."""
        document: dict[str, Any] = {"ts": self.ts, "jobs": list(self.jobs)}
        return document | {"channels": list(self.channels)} if self.channels else document


@dataclass(frozen=True, slots=True)
class Blocked:
    """The reason why an in-flight batch waits for an operator's decision.

    `sluice accept` names it by `token`; `decided` has the commit timestamps with overrides before.
    """

    token: str
    text: str
    decided: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlight:
    """Changes after the checkpoint through `until` (TSO) that several sessions are writing.

    Each of them may be downstream or not. `left_out`: commit timestamps of transactions that were
    ignored when it began, so that nothing of them is downstream. `rules`: the digest of the rules
    by which its changes were prepared (`sluice.etl.changes.rules.rules_digest`).
    """

    until: int
    left_out: tuple[int, ...] = ()
    rules: str = ""
    refused: Blocked | None = None

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Parse the row's part. Raises KeyError, ValueError, TypeError."""
        refused = document.get("blocked")
        return cls(
            int(document["until"]),
            tuple(map(int, document.get("left-out") or ())),
            str(document.get("rules") or ""),
            (
                Blocked(
                    str(refused["id"]),
                    str(refused["text"]),
                    tuple(map(int, refused.get("decided") or ())),
                )
                if refused
                else None
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the row's part."""
        document: dict[str, Any] = {"until": self.until}
        if self.left_out:
            document["left-out"] = list(self.left_out)
        if self.rules:
            document["rules"] = self.rules
        if self.refused is not None:
            document["blocked"] = {
                "id": self.refused.token,
                "text": self.refused.text,
                "decided": list(self.refused.decided),
            }
        return document


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint; `commit_ts`: every transaction through it is downstream.

    `consistent` is false when a Drainer left changes beyond it, or while a batch is
    `in_flight`.
    """

    commit_ts: int
    schema_version: int = 0
    consistent: bool = True
    ts_map: dict[str, Any] = field(default_factory=dict)
    pending: PendingDdl | None = None
    in_flight: InFlight | None = None
    shared: SharedTimestamp | None = None
    safe_until: int = 0
    """Set when a Drainer left it inconsistent: nothing committed after this TSO is downstream.

    0: it isn't known yet.
    """
    copied: tuple[str, ...] = ()
    """Tables without a key (``schema.table``) that an operator made what they were at `commit_ts`.

    Nothing beyond it is in them.
    """
    owner: str = field(default="", compare=False)
    """The pipeline that wrote it, see `relay.Ownership`; empty: a Drainer, or people."""
    process: str = field(default="", compare=False)
    """The process that wrote the row last; "" if it was a Drainer.

    Rows that differ only in it are equal.
    """

    @classmethod
    def parse(cls, text: str, cluster_id: int) -> Self:
        """Return the checkpoint from the row's JSON. Raises CheckpointError."""
        try:
            document = json.loads(text)
            sluice = document.get("sluice") or {}
            refuse_newer(f"the checkpoint of cluster {cluster_id}", sluice, ROW_FORMAT)
            ours, in_flight, shared = (
                sluice.get("ddl"),
                sluice.get("in-flight"),
                sluice.get("shared"),
            )
            return cls(
                commit_ts=int(document["commitTS"]),
                schema_version=int(document.get("schema-version") or 0),
                consistent=bool(document.get("consistent", False)),
                ts_map=document.get("ts-map") or {},
                pending=(
                    PendingDdl(int(ours["job"]), int(ours["commit-ts"]), str(ours["fingerprint"]))
                    if ours
                    else None
                ),
                in_flight=InFlight.from_json(in_flight) if in_flight else None,
                shared=SharedTimestamp.from_json(shared) if shared else None,
                safe_until=int(sluice.get("safe-until") or 0),
                copied=tuple(map(str, sluice.get("copied") or ())),
                owner=str(sluice.get("owner") or ""),
                process=str(sluice.get("process") or ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint of cluster {cluster_id} can't be read ({error!r}): {text[:200]!r}"
            ) from error

    def to_text(self) -> str:
        """Return the row's JSON, keys in Drainer's order."""
        document: dict[str, Any] = {
            "consistent": self.consistent,
            "commitTS": self.commit_ts,
            "ts-map": self.ts_map,
            "schema-version": self.schema_version,
        }
        ours: dict[str, Any] = {"process": self.process} if self.process else {}
        if self.pending is not None:
            ours["ddl"] = {
                "job": self.pending.job_id,
                "commit-ts": self.pending.commit_ts,
                "fingerprint": self.pending.fingerprint,
            }
        if self.in_flight is not None:
            ours["in-flight"] = self.in_flight.to_json()
        if self.shared is not None:
            ours |= {"format": self.row_format, "shared": self.shared.to_json()}
        if self.safe_until:
            ours["safe-until"] = self.safe_until
        if self.copied:
            ours["copied"] = list(self.copied)
        if self.owner:
            ours["owner"] = self.owner
        if ours:
            document["sluice"] = ours
        return json.dumps(document, separators=(",", ":"))

    def at(self, commit_ts: int, schema_version: int | None = None) -> Checkpoint:
        """Return the checkpoint moved to `commit_ts`, with nothing pending.

        It is consistent unless an in-flight batch or a Drainer's changes may reach further.
        """
        # DDL of different tables needn't come in the order of its versions.
        version = max(self.schema_version, schema_version or 0)
        in_flight = (
            self.in_flight
            if self.in_flight is not None and commit_ts < self.in_flight.until
            else None
        )
        shared = self.shared if self.shared is not None and commit_ts < self.shared.ts else None
        ts_map = self.ts_map if commit_ts == self.commit_ts else {}
        moved = replace(
            self,
            commit_ts=commit_ts,
            schema_version=version,
            ts_map=ts_map,
            pending=None,
            in_flight=in_flight,
            shared=shared,
        )
        return (
            moved
            if in_flight is not None or commit_ts < self.safe_until
            else replace(moved, consistent=True, safe_until=0, copied=())
        )

    def before_rest_of(
        self, ts: int, job_id: int | None = None, channels: tuple[int, ...] = ()
    ) -> Checkpoint:
        """Return the checkpoint in front of `ts` (TSO), whose rows are downstream.

        So is its DDL of `job_id`, unless that is None. With `channels` only rows of these are, and
        of those before.
        """
        begun = self.shared if self.shared is not None and self.shared.ts == ts else None
        jobs = begun.jobs if begun is not None else ()
        before = begun.channels if begun is not None and channels else ()
        shared = SharedTimestamp(
            ts, jobs if job_id is None else (*jobs, job_id), (*before, *channels)
        )
        return replace(self.at(ts - 1), shared=shared)

    @property
    def row_format(self) -> int:
        """Return the format of the row."""
        if self.shared is None:
            return FORMAT
        return ROW_FORMAT if self.shared.channels else _SHARED_FORMAT

    @property
    def rows_through(self) -> int:
        """Return the commit ts through which all rows are downstream; DDL: `commit_ts`."""
        return self.commit_ts if self.shared is None else self.shared.ts

    @property
    def needs_safe_mode(self) -> bool:
        """Return whether changes after it may be downstream, left there by a Drainer."""
        return not self.consistent and self.in_flight is None


def refuse_newer(what: str, ours: Mapping[str, Any], reads: int = FORMAT) -> None:
    """Raise NewerCheckpointError if `ours`, Sluice's part of `what`, has an unknown format."""
    found = ours.get("format", FORMAT)
    if found not in range(1, reads + 1):
        raise NewerCheckpointError(
            f"{what} has format {found}, this version of Sluice reads {reads}: a newer version"
            " wrote it",
            hint=NewerCheckpointError.hint,
        )
