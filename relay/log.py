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
    notices/<number>.json
        of what people were notified, see `sluice.relay.notices`
    aligned-chunks/<at_ts>.json
        rows to be written at a checkpoint, see `sluice.relay.aligned_chunks`

`<hour>` is the UTC hour of lo, `<lo>` and `<hi>` are TSOs padded to 20 digits. A window is landed
exactly when its record exists. Since every writer continues at the end of the chain, exclusive
creation by lo is what keeps two writers apart; a part without a record is waste, never data. The
first window has no end to continue at, and two processes that begin may want to do so at different
timestamps: so its record is first created under a name that doesn't depend on them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.relay.aligned_chunks import AlignedChunks
from sluice.relay.cached_storage import CachedStorage
from sluice.relay.control import Control, ControlFile
from sluice.relay.errors import (
    ClaimLostError,
    RelayCorruptError,
    RelayError,
    WindowConflictError,
)
from sluice.relay.failures import Failures
from sluice.relay.format_version import NewerFormatError, refuse_newer
from sluice.relay.known_pumps import KnownPumps
from sluice.relay.overrides import Overrides
from sluice.relay.ownership import Ownership, StopMark
from sluice.relay.part_descriptor import Part
from sluice.relay.pipeline_folders import FOLDER, SubStorage, folder_of_pipeline, pipeline_names
from sluice.relay.storage import Storage, open_storage
from sluice.relay.window import WindowRecord, hour_of
from sluice.relay.window_chain import FIRST_WINDOW_FILE, WindowChain

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN = re.compile(r"[A-Za-z0-9_.]+\Z")
_PART_NAME = re.compile(r"(\d{20})-(\d{20})-([A-Za-z0-9_.]+)-(\d+)\.arrow\Z")
_UNFINISHED_FILE_TTL_S = 3600.0
_ORDERS, _IMMUTABLE = ("control", "overrides", "aligned-chunks"), ("control", "overrides")

T = TypeVar("T")


class RelayLog(WindowChain):
    """The relay log at a URL.

    Any number of processes may read; see `claim` for those that write.
    """

    def __init__(self, storage: Storage, pipeline: str = "") -> None:
        """Open the log of a pipeline in `storage`.

        `pipeline`: the name by which one of several has its own files here, see
        `sluice.relay.pipeline_folders.folder_of_pipeline`.
        """
        super().__init__(storage)
        self.pipeline = pipeline
        self.place: Storage = SubStorage(storage, f"{FOLDER}/{pipeline}") if pipeline else storage
        """The storage of the pipeline's own files."""
        self._orders = (
            CachedStorage(self.place, _ORDERS, _IMMUTABLE) if storage.is_remote else self.place
        )
        self._asked: tuple[object, Control] = None, Control()
        """Operators' requests, with the state of the folder of which they are."""
        self._had_control = False
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

    # Writing

    def write_part(
        self, lo: int, hi: int, token: str, n: int, batches: Iterable[pa.RecordBatch]
    ) -> Part | None:
        """Write a part of the window (lo, hi], durable on return; None if there are no rows.

        `token` and `n` make the name unique: no two attempts may share both. Raises RelayError,
        FileExistsError, OSError.
        """
        from sluice.relay.part import write_part  # with Arrow, for which only writers wait

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
        self._create(FIRST_WINDOW_FILE, window, f"the first window, at {window.lo} or elsewhere,")
        self.commit(window)

    def begun(self) -> WindowRecord | None:
        """Return the first window there ever was, None if there is none.

        For a process that finds the log empty and is about to begin. If the one that began was
        killed before the window was landed, this lands it. Raises RelayCorruptError if it is gone,
        OSError.
        """
        window = self._record(FIRST_WINDOW_FILE)
        if window is None or self.next(window.lo) is not None:
            return window
        for part in window.parts:
            try:
                self._storage.open(part.path).close()
            except FileNotFoundError:
                raise RelayCorruptError(
                    f"{self.url}: there are no windows, but {FIRST_WINDOW_FILE} records that the"
                    f" first one began at {window.lo}; its part {part.path} is gone, too",
                    hint=(
                        "restore the folders windows and parts from a copy; or remove"
                        f" {FIRST_WINDOW_FILE} if the windows were removed on purpose"
                    ),
                ) from None
        with contextlib.suppress(WindowConflictError):
            self.commit(window)
        return window

    def began_at(self) -> int | None:
        """Return where the first window there ever was began (TSO); None if that isn't known.

        Raises RelayCorruptError, OSError.
        """
        window = self._record(FIRST_WINDOW_FILE)
        return None if window is None else window.lo

    def _create(self, path: str, window: WindowRecord, what: str) -> None:
        try:
            self._storage.create(path, window.to_json())
        except FileExistsError:
            raise WindowConflictError(
                f"{self.url}/{path} exists: another process landed {what}; stop one of them"
            ) from None

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
            if not number and self._had_control:
                raise RelayError(
                    f"{self.url}: the folder control, which held orders, is empty or gone: is the"
                    " relay log's folder not mounted? No order is taken for withdrawn",
                    hint="mount the folder again",
                    transient=True,
                )
            self._had_control = number > 0
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
        """Return why applying must not go on; None if it may. Raises RelayCorruptError."""
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
