"""The relay log: a chain of landed windows.

    <url>/parts/<hour>/<lo>-<hi>-<token>-<n>.arrow
        parts, immutable, unique names
    <url>/windows/<hour>/<lo>.json
        window records, created exclusively, after their parts
    <url>/first-window.json
        the first window's record once more: `RelayLog.begin`
    <url>/owners/<role>.json
        the last claim of a role
    <url>/consumers/<name>.json
        a consumer's position, see `sluice.relay.consumers`
    <url>/pumps/<number>.json
        the pumps that count, see `sluice.relay.known_pumps`
    <url>/changed
        in an object store: see `sluice.relay.cached_storage`

and a pipeline's own files, beside them or in a folder by its name
(`sluice.relay.pipeline_folders`):

    downstream.json, stop.json
        the downstream's owner, why applying must not go on
    failures/<task>.json
        why a task has stopped, see `sluice.relay.failures`
    control/<number>.json
        operators' requests, the newest counts
    overrides/<commit_ts>.json
        operators' overrides of single transactions and DDL
    aligned-chunks/<at_ts>.json
        rows to be written at a checkpoint, see `sluice.relay.aligned_chunks`

`<hour>` is the UTC hour of lo, `<lo>` and `<hi>` are TSOs padded to 20 digits. A window is landed
exactly when its record exists. Since every writer continues at the end of the chain, exclusive
creation by lo is what keeps two writers apart; a part without a record is waste, never data. The
first window has no end to continue at, and two processes that begin may want to do so at different
timestamps: so its record is first created under a name that doesn't depend on them.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from sluice.relay.aligned_chunks import AlignedChunks
from sluice.relay.cached_storage import CachedStorage
from sluice.relay.control import Control, ControlFile
from sluice.relay.errors import (
    ClaimLostError,
    RelayCorruptError,
    RelayError,
    RelayGapError,
    WindowConflictError,
)
from sluice.relay.failures import Failures
from sluice.relay.format_version import NewerFormatError, refuse_newer
from sluice.relay.known_pumps import KnownPumps
from sluice.relay.overrides import Overrides
from sluice.relay.ownership import Ownership, StopMark
from sluice.relay.part import Part, read_parts, write_part
from sluice.relay.pipeline_folders import FOLDER, SubStorage, folder_of_pipeline, pipeline_names
from sluice.relay.storage import Storage, open_storage
from sluice.relay.window import WindowRecord, hour_of, window_path

_FIRST_WINDOW_FILE = "first-window.json"
_TOKEN = re.compile(r"[A-Za-z0-9_.]+\Z")
_PART_NAME = re.compile(r"(\d{20})-(\d{20})-([A-Za-z0-9_.]+)-(\d+)\.arrow\Z")
_UNFINISHED_FILE_TTL_S = 3600.0
_MAX_TS = 2**63 - 1
_ORDERS, _IMMUTABLE = ("control", "overrides", "aligned-chunks"), ("control", "overrides")

T = TypeVar("T")


class RelayLog:
    """The relay log at a URL.

    Any number of processes may read; see `claim` for those that write.
    """

    def __init__(self, storage: Storage, pipeline: str = "") -> None:
        """Open the log of a pipeline in `storage`.

        `pipeline`: the name by which one of several has its own files here, see
        `sluice.relay.pipeline_folders.folder_of_pipeline`.
        """
        self._storage = storage
        self.pipeline = pipeline
        self.place: Storage = SubStorage(storage, f"{FOLDER}/{pipeline}") if pipeline else storage
        """The storage of the pipeline's own files."""
        self._orders = (
            CachedStorage(self.place, _ORDERS, _IMMUTABLE) if storage.is_remote else self.place
        )
        self._asked: tuple[object, Control] = None, Control()
        """Operators' requests, with the state of the folder of which they are."""
        self._had_orders = False
        self.aligned_chunks = AlignedChunks(self._orders)
        self.overrides = Overrides(self._orders)
        self.failures = Failures(self.place)
        self.known_pumps = KnownPumps(storage)

    @classmethod
    def open(cls, url: str, pipeline: str = "") -> RelayLog:
        """Open the log at `url` (``file:///dir``, or s3, gs, az); it need not exist yet.

        A caller with settings uses `Settings.open_relay`, which knows the pipeline. Raises
        RelayError.
        """
        return cls(open_storage(url), pipeline)

    @classmethod
    def of_pipeline(cls, url: str, name: str, downstream: str) -> RelayLog:
        """Open it as `open` does, for the pipeline of that name that writes to `downstream`.

        Raises RelayError, OSError.
        """
        storage = open_storage(url)
        refuse_newer(storage, "the relay log")
        return cls(storage, folder_of_pipeline(storage, name, downstream))

    def all_pipelines(self) -> list[RelayLog]:
        """Return the log as each pipeline sees it that has begun to read it, own pipeline first.

        Raises OSError.
        """
        others = [name for name in pipeline_names(self._storage) if name != self.pipeline]
        return [self, *(RelayLog(self._storage, name) for name in others)]

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def storage(self) -> Storage:
        """Return the storage of its files."""
        return self._storage

    # Writing

    def write_part(
        self, lo: int, hi: int, token: str, n: int, batches: Iterable[pa.RecordBatch]
    ) -> Part | None:
        """Write a part of the window (lo, hi], durable on return; None if there are no rows.

        `token` and `n` make the name unique: no two attempts may share both. Raises RelayError,
        FileExistsError, OSError.
        """
        if not _TOKEN.match(token):
            raise RelayError(
                f"token {token!r}: only letters, digits, '.' and '_' can be in a part's name"
            )
        path = f"parts/{hour_of(lo)}/{lo:020d}-{hi:020d}-{token}-{n}.arrow"
        return write_part(self._storage, path, batches)

    def commit(self, window: WindowRecord) -> None:
        """Create the window's record, durable on return: from now on the window is landed.

        Raises WindowConflictError if a window that begins at the same lo was landed, ValueError if
        the record contradicts itself, OSError if the disk refuses.
        """
        window.check()
        self._create(window.path, window, f"the window that begins at {window.lo}")

    def begin(self, window: WindowRecord) -> None:
        """Land the first window of an empty log, wherever it begins.

        Of two concurrent attempts one is refused, even if a listing doesn't show yet what the other
        has landed. Raises as `commit`.
        """
        window.check()
        self._create(_FIRST_WINDOW_FILE, window, f"the first window, at {window.lo} or elsewhere,")
        self.commit(window)

    def begun(self) -> WindowRecord | None:
        """Return the first window there ever was, None if there is none.

        For a process that finds the log empty and is about to begin. If the one that began was
        killed before the window was landed, this lands it. Raises RelayCorruptError if it is gone,
        OSError.
        """
        window = self._record(_FIRST_WINDOW_FILE)
        if window is None or self.next(window.lo) is not None:
            return window
        for part in window.parts:
            try:
                self._storage.open(part.path).close()
            except FileNotFoundError:
                raise RelayCorruptError(
                    f"{self.url}: there are no windows, but {_FIRST_WINDOW_FILE} records that the"
                    f" first one began at {window.lo}; its part {part.path} is gone, too",
                    hint=(
                        "restore the folders windows and parts from a copy; or remove"
                        f" {_FIRST_WINDOW_FILE} if the windows were removed on purpose"
                    ),
                ) from None
        with contextlib.suppress(WindowConflictError):
            self.commit(window)
        return window

    def began_at(self) -> int | None:
        """Return where the first window there ever was began (TSO); None if that isn't known.

        Raises RelayCorruptError, OSError.
        """
        window = self._record(_FIRST_WINDOW_FILE)
        return None if window is None else window.lo

    def _create(self, path: str, window: WindowRecord, what: str) -> None:
        try:
            self._storage.create(path, window.to_json())
        except FileExistsError:
            raise WindowConflictError(
                f"{self.url}/{path} exists: another process landed {what}; stop one of them"
            ) from None

    # Reading

    def next(self, lo: int) -> WindowRecord | None:
        """Return the window that begins at lo, found by its name; None if it isn't landed.

        Raises RelayCorruptError.
        """
        window = self._record(window_path(lo))
        if window is not None and window.lo != lo:
            raise self._corrupt(
                window_path(lo), f"the record is of the window that begins at {window.lo}"
            )
        return window

    def find(self, ts: int) -> WindowRecord | None:
        """Return the first window with hi > ts: the one that holds the commits right after ts.

        None if there is none yet. Its lo is greater than ts if the windows between have been purged
        or never were landed: check it.
        """
        if (exact := self.next(ts)) is not None:
            return exact
        hours = self._storage.names("windows")
        at = bisect.bisect_right(hours, hour_of(ts))
        # One listing for both sides of ts: were it older on one, a window between them would seem
        # to be missing.
        around = self._listed(hours[at - 1]) if at else []
        cut = bisect.bisect_right(around, _name(ts))
        older = (
            lo
            for hour in reversed(hours[: max(at - 1, 0)])
            for lo in _starts_of(reversed(self._listed(hour)))
        )
        through = itertools.chain(_starts_of(reversed(around[:cut])), older)
        newer = (lo for hour in hours[at:] for lo in _starts_of(self._listed(hour)))
        behind = itertools.chain(_starts_of(around[cut:]), newer)
        below = next(self._existing(through), None)
        later = next(self._existing(behind), None) if below is None else None
        if below is None and later is None and (unlisted := self._unlisted_first()) is not None:
            below, later = (unlisted, None) if unlisted.lo <= ts else (None, unlisted)
        if below is not None:
            window = self._onward(below, ts)
            if window.hi > ts:
                return window
            later = next(self._existing(behind), None)
        if later is None:
            return None
        # Since the first look both may have been landed, that one and the one before.
        return self.next(ts) or later

    def first(self) -> WindowRecord | None:
        """Return the oldest window, None if the log is empty."""
        return next(self._existing(self._starts()), None) or self._unlisted_first()

    def last(self) -> WindowRecord | None:
        """Return the newest window, None if the log is empty."""
        hours = reversed(self._storage.names("windows"))
        listed = next(
            self._existing(lo for hour in hours for lo in _starts_of(reversed(self._listed(hour)))),
            None,
        )
        found = listed or self._unlisted_first()
        return None if found is None else self._onward(found, _MAX_TS)

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[WindowRecord]:
        """Yield the landed windows that hold commits in (from_ts, to_ts], in order.

        Without to_ts, all after from_ts.

        Raises RelayGapError where the chain is broken, RelayCorruptError for a bad record.
        """
        window = self.find(from_ts)
        while window is not None and (to_ts is None or window.lo < to_ts):
            yield window
            following = self.next(window.hi)
            if following is None:
                beyond = self.find(window.hi)
                # It may just have been landed, between the two looks.
                if beyond is not None and beyond.lo != window.hi:
                    raise self._gap(window, beyond)
                following = beyond
            window = following

    def backwards(self, through_ts: int, after_ts: int = 0) -> Iterator[WindowRecord]:
        """Yield the landed windows that hold commits in (after_ts, through_ts], the newest first.

        It goes as far back as there are any. Raises RelayGapError where the chain is broken,
        RelayCorruptError for a bad record.
        """
        later: WindowRecord | None = None
        for lo in self._starts_before(through_ts):
            window = self.next(lo)
            if window is None:
                return  # purged between the listing and the look, and with it all that is older
            if later is not None and window.hi != later.lo:
                raise self._gap(window, later)
            if window.hi <= after_ts:
                return
            later = window
            yield window

    def read(self, windows: Iterable[WindowRecord]) -> pa.Table:
        """Return the changes of windows in PART_SCHEMA, merged in commit order.

        Each transaction comes once. Raises RelayCorruptError, which names the file.
        """
        return read_parts(self._storage, [part for window in windows for part in window.parts])

    # Ownership and control

    def claim(self, role: str) -> RoleClaim:
        """Take a role (such as "land") over from its last claimant.

        The newest claimant is the owner.
        """
        token = secrets.token_hex(6)
        claim = RoleClaim(self._storage, role, token)
        owner = {
            "token": token,
            "pipeline": self.pipeline,
            "claimed_ms": time.time_ns() // 1_000_000,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._storage.replace(claim.path, json.dumps(owner).encode() + b"\n")
        return claim

    def claimant(self, role: str) -> str | None:
        """Return the pipeline that has claimed a role; None if it is unclaimed or released.

        Raises OSError.
        """
        try:
            owner: Any = json.loads(self._storage.read(f"owners/{role}.json"))
            return str(owner.get("pipeline", "")) if owner["token"] else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def control(self) -> Control:
        """Return operators' requests, the default if there are none.

        Raises RelayCorruptError, and RelayError if the requests that this process has read are
        gone: a folder that isn't mounted looks like one without requests.
        """
        as_it_was = (
            self._orders.unchanged_token("control")
            if isinstance(self._orders, CachedStorage)
            else None
        )
        before, control = self._asked
        if as_it_was is None or as_it_was is not before:
            number, control = ControlFile(self._orders).newest()
            if not number and self._had_orders:
                raise RelayError(
                    f"{self.url}: the folder control, which held orders, is empty or gone: is the"
                    " relay log's folder not mounted? No order is taken for withdrawn",
                    hint="mount the folder again",
                    transient=True,
                )
            self._had_orders = number > 0
            self._asked = as_it_was, control
        return control

    def change_control(self, change: Callable[[Control], Control]) -> Control:
        """Change operators' requests durably, by compare-and-set, and return the new ones.

        `change` maps the present requests to the new ones, and may be called several times.
        """
        return ControlFile(self._orders).change(change)

    def ownership(self) -> Ownership | None:
        """Return the downstream of these windows; None if none was ever written to.

        Raises RelayCorruptError.
        """
        return self._small("downstream.json", Ownership.from_bytes)

    def own(self, ownership: Ownership) -> Ownership:
        """Record the downstream's owner durably if there is none, and return the recorded one.

        Raises RelayCorruptError.
        """
        with contextlib.suppress(FileExistsError):
            self.place.create("downstream.json", ownership.to_bytes())
        return self.ownership() or ownership

    def set_ownership(self, ownership: Ownership) -> None:
        """Record the downstream's owner durably, in place of any other."""
        self.place.replace("downstream.json", ownership.to_bytes())

    def stopped(self) -> StopMark | None:
        """Why applying must not go on; None if it may. Raises RelayCorruptError."""
        return self._small("stop.json", StopMark.from_bytes)

    def stop(self, stop: StopMark) -> None:
        """Durably forbid applying; the first reason stays."""
        with contextlib.suppress(FileExistsError):
            self.place.create("stop.json", stop.to_bytes())

    def clear_stop(self) -> None:
        """Allow applying again."""
        self.place.remove("stop.json")

    def _small(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(self.place.read(path))
        except FileNotFoundError:
            return None
        except NewerFormatError as error:
            raise error.at(f"{self.place.url}/{path}") from None
        except ValueError as error:
            raise RelayCorruptError(
                f"{self.place.url}/{path}: {error}", hint="restore the file from a copy"
            ) from None

    # Retention

    def clean_unreferenced(self, since_ts: int = 0) -> int:
        """Delete the parts that killed or losing tasks left in windows with lo >= since_ts.

        Returns their number. Only parts that no record can ever name go: those of windows that have
        a record without them, and those of windows that the chain has gone past. What a running
        task writes is never touched.
        """
        last = self.last()
        if last is None:
            return 0
        removed = 0
        for hour in self._storage.names("parts"):
            if not hour_of(since_ts) <= hour <= hour_of(last.lo):
                continue
            self._storage.sweep(f"windows/{hour}", _UNFINISHED_FILE_TTL_S)
            by_lo: dict[int, list[str]] = {}
            for name in self._storage.names(f"parts/{hour}"):
                if (match := _PART_NAME.match(name)) and since_ts <= int(match.group(1)) <= last.lo:
                    by_lo.setdefault(int(match.group(1)), []).append(f"parts/{hour}/{name}")
            for lo, paths in by_lo.items():
                window = self.next(lo)
                referenced = {part.path for part in window.parts} if window is not None else set()
                for path in paths:
                    if path not in referenced:
                        self._storage.remove(path)
                        removed += 1
            self._storage.remove_empty_directory(f"parts/{hour}")
        return removed

    def purge(self, before_ts: int, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete the windows with hi <= before_ts, oldest first, and return their number.

        The newest one stays. It ends early if `stop` returns true. The caller makes sure that
        `before_ts` is not past what any consumer has applied, see `sluice.relay.consumers`.
        """
        last = self.last()
        removed = 0
        for lo in self._starts():
            if last is None or lo >= last.lo or stop():
                break
            window = self.next(lo)
            if window is None:  # another process has removed it
                continue
            if window.hi > before_ts:
                break
            # first, so that no record ever names a part that is gone
            self._storage.remove(window.path)
            for part in window.parts:
                self._storage.remove(part.path)
            hour = hour_of(lo)
            self._storage.remove_empty_directory(f"windows/{hour}")
            self._storage.remove_empty_directory(f"parts/{hour}")
            removed += 1
        return removed

    # Inside

    def _gap(self, window: WindowRecord, later: WindowRecord) -> RelayGapError:
        return RelayGapError(
            f"{self.url}: no window begins at {window.hi}, where {window.path} ends, but"
            f" {later.path} exists",
            hint=f"restore {window_path(window.hi)} from a copy",
        )

    def _starts(self) -> Iterator[int]:
        for hour in self._storage.names("windows"):
            yield from _starts_of(self._listed(hour))

    def _starts_before(self, ts: int) -> Iterator[int]:
        """Yield where windows begin, the newest first."""
        hours = self._storage.names("windows")
        for hour in reversed(hours[: bisect.bisect_right(hours, hour_of(ts))]):
            yield from (lo for lo in _starts_of(reversed(self._listed(hour))) if lo < ts)

    def _unlisted_first(self) -> WindowRecord | None:
        """Return the first window of a young log, which a lagging list doesn't show."""
        window = self._record(_FIRST_WINDOW_FILE) if self._storage.lists_may_lag else None
        return self.next(window.lo) if window is not None else None

    def _listed(self, hour: str) -> list[str]:
        """Return the names of an hour's records, and of anything else there, in order."""
        return self._storage.names(f"windows/{hour}")

    def _existing(self, starts: Iterable[int]) -> Iterator[WindowRecord]:
        """Yield the windows that begin at `starts`, which come from a listing.

        Those that have been purged meanwhile are left out.
        """
        return (window for lo in starts if (window := self.next(lo)) is not None)

    def _onward(self, window: WindowRecord, ts: int) -> WindowRecord:
        """Return the first of the following windows with hi > ts, or the last one.

        It goes on where a listing may lag.
        """
        while (
            self._storage.lists_may_lag
            and window.hi <= ts
            and (following := self.next(window.hi)) is not None
        ):
            window = following
        return window

    def _record(self, path: str) -> WindowRecord | None:
        """Return a window record, None if it isn't there."""
        try:
            data = self._storage.read(path)
            try:
                return WindowRecord.from_json(data)
            except ValueError:  # it may have been damaged on the way here
                return WindowRecord.from_json(self._storage.read(path))
        except FileNotFoundError:
            return None
        except NewerFormatError as error:
            raise error.at(f"window record {self.url}/{path}") from None
        except ValueError as error:
            raise self._corrupt(path, error) from None

    def _corrupt(self, path: str, what: object) -> RelayCorruptError:
        return RelayCorruptError(
            f"window record {self.url}/{path}: {what}",
            hint=(
                "restore the file from a copy, or, while the pumps still hold these commits, remove"
                " it and all later records and land again"
            ),
        )


def _name(lo: int) -> str:
    """Return the name of the record of the window that begins at lo, in its hour."""
    return window_path(lo).rpartition("/")[2]


def _starts_of(names: Iterable[str]) -> Iterator[int]:
    """Yield where the windows begin that have records of these names.

    One by one: an hour may have tens of thousands, and the caller needs one or two.
    """
    return (
        int(name[:20])
        for name in names
        if len(name) == 25 and name[:20].isdigit() and name.endswith(".json")
    )


class RoleClaim:
    """A role taken by `RelayLog.claim`; `token` is its holder's."""

    def __init__(self, storage: Storage, role: str, token: str) -> None:
        self._storage = storage
        self.role = role
        self.token = token
        self.path = f"owners/{role}.json"

    def check(self) -> None:
        """Check that the role is still this claim's. Raises ClaimLostError."""
        try:
            owner: Any = json.loads(self._storage.read(self.path))
            token = owner["token"]
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise ClaimLostError(
                f"{self._storage.url}/{self.path}: {error!r}: the claim can't be proved",
                hint="start again",
            ) from None
        if token != self.token:
            raise ClaimLostError(
                f"{self.role} was taken over by process {owner.get('pid')} on {owner.get('host')} "
                f"({self._storage.url}/{self.path})"
            )

    def release(self) -> None:
        """Release the role for any other process to claim.

        Raises ClaimLostError if another one has it already, OSError.
        """
        self.check()
        self._storage.replace(self.path, json.dumps({"token": ""}).encode() + b"\n")
