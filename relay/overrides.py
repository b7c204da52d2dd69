"""What operators decided about single transactions and DDL statements, kept beside the windows for
every run to come.

    <url>/decisions/<commit_ts>.json        the decision; created exclusively, never changed, removed to take it back
    <url>/decisions/<commit_ts>.begun.json  a commit that keeps to it is about to come, or has come
    <url>/decisions/<commit_ts>.used.json   when a checkpoint first passed it

`<commit_ts>` is padded to 20 digits. A decision holds wherever the relay log is read, so a restore
comes to the same result.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluice.errors import RequestError
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.format_version import parse_json
from sluice.relay.storage import Storage

SKIP, REPLACE = "skip", "replace"
_FOLDER = "decisions"
_NAME = re.compile(r"(\d{20})\.json\Z")
_USED = re.compile(r"(\d{20})\.used\.json\Z")


class OverrideExistsError(RequestError, RelayError):
    """There is a decision about this commit timestamp already."""

    way_out = "take the decision back first: `sluice decisions remove`"


@dataclass(frozen=True, slots=True)
class Override:
    """`skip`: nothing of the transaction or DDL at `commit_ts` (TSO) goes downstream.

    `replace`: in place of the DDL statement there, `sql` is executed, statement by statement; may
    be empty.
    """

    commit_ts: int
    action: str
    sql: tuple[str, ...] = ()
    by: str = ""
    """Who decided."""
    why: str = ""
    made_ms: int = 0
    """Unix time in ms."""

    def to_json(self) -> bytes:
        """As the file's content."""
        return json.dumps(asdict(self), ensure_ascii=False).encode() + b"\n"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"sql": list(self.sql)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Override:
        """Strict: every field, nothing else. Raises ValueError."""
        kinds: dict[str, type] = {
            "commit_ts": int,
            "action": str,
            "sql": list,
            "by": str,
            "why": str,
            "made_ms": int,
        }
        if set(raw) != set(kinds):
            raise ValueError(f"a decision has the fields {sorted(raw)}, expected {sorted(kinds)}")
        for name, kind in kinds.items():
            if type(raw[name]) is not kind:
                raise ValueError(f"field {name} is {raw[name]!r}, expected {kind.__name__}")
        if raw["action"] not in (SKIP, REPLACE):
            raise ValueError(f"action {raw['action']!r} is neither {SKIP} nor {REPLACE}")
        if not all(type(statement) is str for statement in raw["sql"]):
            raise ValueError("field sql must hold strings")
        return cls(**{**raw, "sql": tuple(raw["sql"])})

    def __str__(self) -> str:
        what = "skipped" if self.action == SKIP else f"replaced by {len(self.sql)} statements"
        told = f", {self.why!r}" if self.why else ""
        return f"{what} (decided by {self.by or 'an operator'}{told})"


class Overrides:
    """The decisions in a relay log."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, decision: Override) -> None:
        """Durably write a decision down.

        Raises DecisionExistsError if there is one about the same commit timestamp.
        """
        path = _path(decision.commit_ts)
        try:
            self._storage.create(path, decision.to_json())
        except FileExistsError:
            raise OverrideExistsError(
                f"{self._storage.url}/{path} exists: there is a decision about commit_ts"
                f" {decision.commit_ts} already; `sluice decisions remove {decision.commit_ts}`"
                " takes it back"
            ) from None

    def remove(self, commit_ts: int) -> bool:
        """Take a decision back; False if there is none.

        Found by its name: a list may not know of it yet.
        """
        self._names()  # what is remembered of it is as old as the last look
        try:
            self._storage.read(_path(commit_ts))
        except FileNotFoundError:
            return False
        for path in (_begun_path, _path, _used_path):
            self._storage.remove(path(commit_ts))
        return True

    def unsettled(self, through_ts: int) -> Sequence[Override]:
        """Return decisions through a commit timestamp that aren't marked as used.

        Raises RelayCorruptError.
        """
        names = self._names()
        used = set(_timestamps(_USED, names))
        return self._read_all(
            ts for ts in _timestamps(_NAME, names) if ts <= through_ts and ts not in used
        )

    def _read_all(self, stamps: Iterable[int]) -> list[Override]:
        return [decision for decision in map(self._read, stamps) if decision is not None]

    def list(self, after_ts: int = -1, through_ts: int | None = None) -> list[Override]:
        """Decisions with after_ts < commit_ts <= through_ts, ascending.

        Raises RelayCorruptError, which names the file.
        """
        stamps = _timestamps(_NAME, self._names())
        return self._read_all(
            ts for ts in stamps if after_ts < ts and (through_ts is None or ts <= through_ts)
        )

    def used_ms(self) -> dict[int, int]:
        """By commit timestamp, when (Unix ms) each decision that was used was first used."""
        found = {}
        for match in map(_USED.match, self._names()):
            if match:
                try:
                    found[int(match[1])] = int(
                        json.loads(self._storage.read(_used_path(int(match[1]))))["used_ms"]
                    )
                except (FileNotFoundError, ValueError, KeyError, TypeError):
                    continue
        return found

    def mark_begun(self, decisions: Sequence[Override]) -> None:
        """Note, before a commit, that it keeps to these decisions."""
        for decision in decisions:
            with contextlib.suppress(FileExistsError):
                self._storage.create(_begun_path(decision.commit_ts), b"{}\n")

    def is_kept(self, commit_ts: int) -> bool:
        """Whether the first checkpoint that passes a decision keeps to it: a commit has begun with
        it, or it is used. Only the holder of the checkpoint can rely on it.
        """
        return any(self._is_there(path(commit_ts)) for path in (_begun_path, _used_path))

    def mark_used(self, decisions: Sequence[Override]) -> None:
        """Note that a checkpoint has passed these decisions. The first time counts."""
        for decision in decisions:
            try:
                note = {"used_ms": time.time_ns() // 1_000_000}
                self._storage.create(
                    _used_path(decision.commit_ts), json.dumps(note).encode() + b"\n"
                )
            except FileExistsError:
                continue
            finally:
                self._storage.remove(_begun_path(decision.commit_ts))

    def _is_there(self, path: str) -> bool:
        try:
            self._storage.read(path)
        except FileNotFoundError:
            return False
        return True

    def _names(self) -> Sequence[str]:
        return self._storage.names(_FOLDER)

    def _read(self, commit_ts: int) -> Override | None:
        path = _path(commit_ts)
        try:
            decision = Override.from_dict(parse_json(self._storage.read(path), "a decision"))
            if decision.commit_ts != commit_ts:
                raise ValueError(f"it is about commit_ts {decision.commit_ts}")
            return decision
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise RelayCorruptError(
                f"decision {self._storage.url}/{path}: {error}",
                way_out=f"remove it with `sluice decisions remove {commit_ts}` and decide again",
            ) from None


def _timestamps(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    return [int(match[1]) for match in map(pattern.match, names) if match]


def _path(commit_ts: int) -> str:
    return f"{_FOLDER}/{commit_ts:020d}.json"


def _begun_path(commit_ts: int) -> str:
    return f"{_FOLDER}/{commit_ts:020d}.begun.json"


def _used_path(commit_ts: int) -> str:
    return f"{_FOLDER}/{commit_ts:020d}.used.json"
