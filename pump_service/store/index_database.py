"""Wrap the index's LevelDB, which may break in use: reject it, reopen it, rebuild it."""

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
    """Hold the open database. Thread-safe; one thread writes.

    Any caller that meets damage reports it. From then on reads raise IndexDamagedError, until
    `rebuild` has created a new database and the indexer has filled it and called `set_complete`.
    """

    def __init__(self, directory: Path, options: IndexOptions) -> None:
        """Open or create it.

        A damaged database is moved to `kv.broken-<time>` and created again (`was_rebuilt`). Raises
        OSError if even that fails.
        """
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
        """Read what must be readable. Raises DamagedError if it isn't."""

    def _open(self) -> CheckedDB:
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        return CheckedDB(self.path, self._options)

    def _set_aside(self, what: str) -> None:
        """Move the files away for later inspection, and remove those moved before."""
        aside = self.path.with_name(f"{self.path.name}.broken-{time.time_ns() // 1_000_000}")
        for former in self.path.parent.glob(f"{self.path.name}.broken-*"):
            shutil.rmtree(former, ignore_errors=True)
        self.path.rename(aside)
        log.error("%s is damaged (%s): moved to %s, rebuilding the index", self.path, what, aside)

    @contextmanager
    def _use(self, *, wait: bool = True, reader: bool = False) -> Iterator[CheckedDB]:
        """Yield the database, which stays open meanwhile.

        While it is being reopened, callers with `wait` wait; others get OSError. A `reader` needs
        it to be complete. Raises IndexDamagedError, also from within, if it is damaged.
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
            log.error(
                "%s is damaged (%s): reads fail until it is rebuilt from the value log",
                self.path,
                what,
            )
            self.on_damage()

    def report_damage(self, what: str) -> NoReturn:
        """Report an entry that a reader found missing, as if LevelDB had.

        Raises IndexDamagedError.
        """
        self._report(what)
        raise IndexDamagedError(self.path, what)

    @property
    def damaged(self) -> bool:
        """Return whether it must be rebuilt."""
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
        """Reopen it after a failed write, before any other write.

        LevelDB's journal may end in the middle of that write, and the next start would skip
        everything written behind it. Reopening cuts that off; what is missing then lies behind
        headPointer. Readers wait meanwhile. Raises OSError if there isn't even space for it, and
        readers continue in that case; IndexDamagedError if it must be rebuilt.
        """
        figures = os.statvfs(self.path)
        if (
            self._db is not None
            and figures.f_bavail * figures.f_frsize < self._options.write_buffer
        ):
            raise OSError(
                errno.ENOSPC,
                "waiting for free space of storage.kv.write-buffer bytes",
                str(self.path),
            )
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
        """Move a damaged database away and begin an empty one. After an OSError, call it again."""
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
        """Set whether everything through the sorter's max_commit_ts is indexed.

        Until then reads fail.
        """
        with self._gate:
            self._complete = complete and not self._damage

    @property
    def is_complete(self) -> bool:
        """Return the value set last, False after damage."""
        return self._complete

    def close(self) -> None:
        """Close the database; every later call raises StoreClosedError."""
        with self._gate:
            self._closed = True
            self._gate.notify_all()
        self.on_damage = lambda: None  # releases the listener, and so the files that it holds
        self._release()
