"""Operators' overrides of single transactions and DDL statements, beside the windows.

    <url>/overrides/<commit_ts>.json        the override; created exclusively, never changed,
                                            removed to withdraw it
    <url>/overrides/<commit_ts>.begun.json  a commit that obeys it is about to come, or has come
    <url>/overrides/<commit_ts>.used.json   when a checkpoint first passed it

`<commit_ts>` is padded to 20 digits. Where several transactions or DDL share it, an override of one
of them is `<commit_ts>-<start_ts>.json`, and so on. An override holds for every later run wherever
the relay log is read, so a restore comes to the same result.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sluice.errors import RequestError
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.json_codec import OMIT_DEFAULT, JsonDocument
from sluice.relay.storage import Storage

SKIP, REPLACE = "skip", "replace"
_FOLDER = "overrides"
_NAME = re.compile(r"(\d{20})(?:-(\d{20}))?\.json\Z")
_USED = re.compile(r"(\d{20})(?:-(\d{20}))?\.used\.json\Z")

OverrideKey = tuple[int, int]
"""commit_ts and start_ts of what is decided about; start_ts 0: all that was committed then."""


class OverrideExistsError(RequestError, RelayError):
    """An override of this commit timestamp exists already."""

    hint = "take the override back first: `sluice overrides remove`"


@dataclass(frozen=True, slots=True)
class Override(JsonDocument):
    """An override; `skip`: nothing of the transaction or DDL at `commit_ts` (TSO) goes downstream.

    `replace`: in place of the DDL statement there, `sql` is executed, statement by statement; may
    be empty.
    """

    JSON_NAME: ClassVar = "an override"
    JSON_FIELDS: ClassVar = {"start_ts": OMIT_DEFAULT}
    JSON_COMPLETE: ClassVar = True

    commit_ts: int
    action: str
    sql: tuple[str, ...] = ()
    by: str = ""
    """The person who decided."""
    why: str = ""
    made_ms: int = 0
    """Unix time in ms."""
    start_ts: int = 0
    """The start_ts of the one that is meant, where several share the commit_ts; else 0."""

    @property
    def key(self) -> OverrideKey:
        """Return what it is kept under."""
        return self.commit_ts, self.start_ts

    @property
    def named(self) -> int:
        """Return the commit_ts, or minus the start_ts for one of several: see `is_named`."""
        return _named(self.commit_ts, self.start_ts)

    def __post_init__(self) -> None:
        if self.action not in (SKIP, REPLACE):
            raise ValueError(f"unknown action {self.action!r}: expected {SKIP} or {REPLACE}")

    def __str__(self) -> str:
        what = "skipped" if self.action == SKIP else f"replaced by {len(self.sql)} statements"
        reason = f", {self.why!r}" if self.why else ""
        return f"{what} (decided by {self.by or 'an operator'}{reason})"


class Overrides:
    """The overrides in a relay log."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, override: Override) -> None:
        """Durably write an override down.

        Raises OverrideExistsError if there is one about the same transaction.
        """
        path = _path(override.key)
        try:
            self._storage.create(path, override.to_bytes())
        except FileExistsError:
            raise OverrideExistsError(
                f"{self._storage.url}/{path} exists: there is an override about commit_ts"
                f" {override.commit_ts} already; `{remove_command(*override.key)}` takes it back"
            ) from None

    def remove(self, commit_ts: int, start_ts: int = 0) -> bool:
        """Take an override back; False if there is none.

        Found by its name: a list may not know of it yet.
        """
        key = commit_ts, start_ts
        self._names()  # what is remembered of it is as old as the last look
        try:
            self._storage.read(_path(key))
        except FileNotFoundError:
            return False
        for path in (_begun_path, _path, _used_path):
            self._storage.remove(path(key))
        return True

    def unsettled(self, through_ts: int) -> Sequence[Override]:
        """Return overrides through a commit timestamp that aren't marked as used.

        Raises RelayCorruptError.
        """
        names = self._names()
        used = set(_keys(_USED, names))
        return self._read_all(
            key for key in _keys(_NAME, names) if key[0] <= through_ts and key not in used
        )

    def _read_all(self, keys: Iterable[OverrideKey]) -> list[Override]:
        return [override for override in map(self._read, keys) if override is not None]

    def list(self, after_ts: int = -1, through_ts: int | None = None) -> list[Override]:
        """Return the overrides with after_ts < commit_ts <= through_ts, ascending.

        Raises RelayCorruptError, which names the file.
        """
        return self._read_all(
            key
            for key in _keys(_NAME, self._names())
            if after_ts < key[0] and (through_ts is None or key[0] <= through_ts)
        )

    def used_ms(self) -> dict[int, int]:
        """Return the first use (Unix ms) of each used override, by `Override.named`."""
        found = {}
        for key in _keys(_USED, self._names()):
            try:
                used = json.loads(self._storage.read(_used_path(key)))["used_ms"]
                found[_named(*key)] = int(used)
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                continue
        return found

    def mark_begun(self, overrides: Sequence[Override]) -> None:
        """Note, before a commit, that it keeps to these overrides."""
        for override in overrides:
            with contextlib.suppress(FileExistsError):
                self._storage.create(_begun_path(override.key), b"{}\n")

    def is_kept(self, commit_ts: int, start_ts: int = 0) -> bool:
        """Return whether the first checkpoint that passes an override obeys it.

        It does if a commit has begun with it, or if it is used. Only the holder of the checkpoint
        can rely on this.
        """
        return any(
            self._is_there(path((commit_ts, start_ts))) for path in (_begun_path, _used_path)
        )

    def mark_used(self, overrides: Sequence[Override]) -> None:
        """Note that a checkpoint has passed these overrides. The first time counts."""
        for override in overrides:
            try:
                note = {"used_ms": time.time_ns() // 1_000_000}
                self._storage.create(_used_path(override.key), json.dumps(note).encode() + b"\n")
            except FileExistsError:
                continue
            finally:
                self._storage.remove(_begun_path(override.key))

    def _is_there(self, path: str) -> bool:
        try:
            self._storage.read(path)
        except FileNotFoundError:
            return False
        return True

    def _names(self) -> Sequence[str]:
        return self._storage.names(_FOLDER)

    def _read(self, key: OverrideKey) -> Override | None:
        path = _path(key)
        try:
            override = Override.from_bytes(self._storage.read(path))
            if override.key != key:
                raise ValueError(
                    f"it is about commit_ts {override.commit_ts}, start_ts {override.start_ts}"
                )
            return override
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise RelayCorruptError(
                f"override {self._storage.url}/{path}: {error}",
                hint=f"remove it with `{remove_command(*key)}` and decide again",
            ) from None


def is_named(decided: Container[int], commit_ts: int, start_ts: int) -> bool:
    """Return whether a transaction or DDL is among those that overrides name (`Override.named`)."""
    return commit_ts in decided or -start_ts in decided


def _named(commit_ts: int, start_ts: int) -> int:
    return -start_ts if start_ts else commit_ts


def remove_command(commit_ts: int, start_ts: int = 0) -> str:
    """Return the command that takes an override back."""
    return f"sluice overrides remove {commit_ts}{f' --start-ts {start_ts}' if start_ts else ''}"


def _keys(pattern: re.Pattern[str], names: Iterable[str]) -> list[OverrideKey]:
    return [(int(match[1]), int(match[2] or 0)) for match in map(pattern.match, names) if match]


def _stem(key: OverrideKey) -> str:
    return f"{_FOLDER}/{key[0]:020d}{f'-{key[1]:020d}' if key[1] else ''}"


def _path(key: OverrideKey) -> str:
    return f"{_stem(key)}.json"


def _begun_path(key: OverrideKey) -> str:
    return f"{_stem(key)}.begun.json"


def _used_path(key: OverrideKey) -> str:
    return f"{_stem(key)}.used.json"


def sync_overrides(relay: Overrides, archive: Overrides) -> int:
    """Make the archive's overrides equal to the relay log's, and return how many have changed.

    So a restore excludes and replaces what replication did. Every pass copies them: an operator may
    add an override when its window has been archived, and remove it before a checkpoint has passed
    it. An override that a checkpoint has passed stays, whatever becomes of it in the relay log. The
    copy may be repeated, and broken off anywhere. Raises RelayCorruptError, OSError.
    """
    used_there, used = archive.used_ms(), relay.used_ms()
    there = {override.named: override for override in archive.list()}
    decided = {override.named: override for override in relay.list()}
    changed = 0
    for name, override in there.items():
        if name not in used_there and override != decided.get(name):
            archive.remove(*override.key)
            changed += 1
    for name, override in decided.items():
        if name not in used_there and there.get(name) != override:
            with contextlib.suppress(OverrideExistsError):  # another process carries them over, too
                archive.add(override)
                changed += 1
    newly_used = sorted(decided.keys() & used.keys() - used_there.keys())
    archive.mark_used([decided[name] for name in newly_used])
    return changed
