"""The index's LevelDB as something that may break while it is in use: it is refused, opened again, made anew."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from sluice.pump_service.store.errors import IndexDamagedError, StoreClosedError
from sluice.pump_service.store.leveldb import Batch, CheckedDB, DamagedError
from sluice.pump_service.store.options import IndexOptions

log = logging.getLogger(__name__)


class RecoverableDatabase:
    """The open database. Thread-safe; one thread writes.

    Whatever meets damage reports it: from then on reads raise IndexDamagedError, until `rebuild` has made a new
    database, the indexer has filled it, and said so with `set_complete`.
    """

    def __init__(self, directory: Path, options: IndexOptions) -> None:
        """Opens or creates it. A database that is damaged is set aside as `kv.broken-<time>` and made anew
        (`was_rebuilt`); OSError if even that fails."""
        self._options = options
        self.path = directory
        self.was_rebuilt = not (directory / "CURRENT").exists()
        self.on_damage: Callable[[], None] = lambda: None
        self._gate = threading.Condition()
        self._users = 0
        self._closed = False
        self._torn = False
        self._damage = ""
        self._complete = True
        self._db: CheckedDB | None = None
        try:
            self._db = self._open()
            self._verify(self._db)
        except DamagedError as error:
            self._release()
            self._set_aside(str(error))
            self.was_rebuilt = True
            self._db = self._open()
        except OSError as error:
            raise OSError(f"the index {directory} can't be opened: {error}") from error

    def _verify(self, db: CheckedDB) -> None:
        """Reads what must be readable. DamagedError if it isn't."""

    def _open(self) -> CheckedDB:
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        return CheckedDB(self.path, self._options)

    def _set_aside(self, what: str) -> None:
        """Moves the files away, for whoever wants to look at them; what was set aside before is removed."""
        aside = self.path.with_name(f"{self.path.name}.broken-{time.time_ns() // 1_000_000}")
        for former in self.path.parent.glob(f"{self.path.name}.broken-*"):
            shutil.rmtree(former, ignore_errors=True)
        self.path.rename(aside)
        log.error("%s is damaged (%s): moved to %s, the index is made again", self.path, what, aside)

    @contextmanager
    def _use(self, *, wait: bool = True, reader: bool = False) -> Iterator[CheckedDB]:
        """The database, which stays open meanwhile. While it is being opened again, those who `wait` do; OSError for
        the others. A `reader` needs it to be complete. IndexDamagedError, also from within, if it is damaged.
        """
        with self._gate:
            while wait and self._db is None and not self._closed and not self._damage:
                self._gate.wait()
            if self._closed:
                raise StoreClosedError(f"the index {self.path} is closed")
            if self._damage or (reader and not self._complete):
                raise IndexDamagedError(self.path, self._damage or "see the log")
            if self._db is None:
                raise OSError(f"the index {self.path} could not be opened again yet")
            self._users += 1
            db = self._db
        try:
            yield db
        except DamagedError as error:
            self._report(str(error))
            raise IndexDamagedError(self.path, str(error)) from error
        finally:
            with self._gate:
                self._users -= 1
                if not self._users:
                    self._gate.notify_all()

    def _report(self, what: str) -> None:
        with self._gate:
            known, self._damage = self._damage, self._damage or what
            self._complete = False
            self._gate.notify_all()
        if not known:
            log.error("%s is damaged (%s): nothing is read until it is made again from the value log", self.path, what)
            self.on_damage()

    def report_damage(self, what: str) -> NoReturn:
        """For a reader who finds that an entry is missing: as if LevelDB had said so. Raises IndexDamagedError."""
        self._report(what)
        raise IndexDamagedError(self.path, what)

    @property
    def damaged(self) -> bool:
        """Whether it has to be rebuilt."""
        return bool(self._damage)

    def _write(self, batch: Batch) -> None:
        if self._torn:
            raise OSError(f"the index {self.path} must be opened again after a write that failed")
        try:
            batch.write()
        except BaseException:
            self._torn = True
            raise

    def _release(self) -> None:
        with self._gate:
            db, self._db = self._db, None
            self._gate.wait_for(lambda: not self._users)
        if db is not None:
            db.close()

    def reopen(self) -> None:
        """To be called after a write failed, before any other: LevelDB's journal may end in the middle of that write,
        and at the next start it would skip all that had been written behind it. Opening it again cuts that off; what is
        missing then is what lies behind headPointer. Readers wait meanwhile. OSError if there isn't even the space for
        it; readers go on in that case. IndexDamagedError if it has to be rebuilt.
        """
        figures = os.statvfs(self.path)
        if self._db is not None and figures.f_bavail * figures.f_frsize < self._options.write_buffer:
            raise OSError(errno.ENOSPC, "waiting for free space of storage.kv.write-buffer bytes", str(self.path))
        self._release()
        try:
            db = self._open()
        except DamagedError as error:
            self._report(str(error))
            raise IndexDamagedError(self.path, str(error)) from error
        except OSError as error:
            raise OSError(f"the index {self.path} can't be opened again: {error}") from error
        self._take(db)

    def rebuild(self) -> None:
        """Sets a damaged database aside and begins an empty one. OSError if that fails: to be called again."""
        self._release()
        with self._gate:
            what = self._damage
        if (self.path / "CURRENT").exists():
            self._set_aside(what)
        try:
            db = self._open()
        except DamagedError as error:
            raise OSError(f"the new index {self.path} can't be read: {error}") from error
        self._take(db)

    def _take(self, db: CheckedDB) -> None:
        with self._gate:
            self._db, self._torn, self._damage = db, False, ""
            self._gate.notify_all()

    def set_complete(self, *, complete: bool) -> None:
        """Whether everything through the sorter's max_commit_ts is in here. Readers are refused until it is."""
        with self._gate:
            self._complete = complete and not self._damage

    @property
    def is_complete(self) -> bool:
        """As set, and not damaged since."""
        return self._complete

    def close(self) -> None:
        """Closes the database; every later call raises StoreClosedError."""
        with self._gate:
            self._closed = True
            self._gate.notify_all()
        self.on_damage = lambda: None  # lets go of whoever listened, and so of the files that it holds
        self._release()
