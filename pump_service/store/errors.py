"""Errors of the pump's store. Each message names what it happened to and what can be done."""

from __future__ import annotations

from sluice.errors import SluiceError


class StoreError(SluiceError):
    """Base of everything the store raises or hands to `done`."""

    way_out = "look at the disk and the pump's log, then start the pump again"


class StoreLockedError(StoreError):
    """Another process holds the data directory."""

    way_out = "end the other process, or give this pump a data-dir of its own"


class NewerDataError(StoreError):
    """A newer version of Sluice wrote this data directory; nothing in it was touched."""

    way_out = "start the version of the pump that wrote it, or a newer one, or give this pump another data-dir"


class StoreClosedError(StoreError):
    """The store is closed or closing: nothing is accepted any more."""

    transient = True


class StoreFailedError(StoreError):
    """A write or fsync of the value log failed. What reached the disk is unknown, so nothing is accepted until the
    process is started again (an fsync that failed once can't be trusted when repeated)."""


class NoSpaceError(StoreError):
    """Less disk space left than `stop_write_at_available_space`; only fake binlogs are accepted."""

    transient = True
    way_out = "make room on the pump's disk: it takes writes again by itself"

    def __init__(self, available: int, threshold: int) -> None:
        # TiDB and its operators know this text.
        super().__init__(f"no available space, available: {available}, StopWriteAtAvailableSpace: {threshold}")
        self.available = available
        self.threshold = threshold


class NoDescriptorsError(StoreError):
    """The process may open no more files. Nothing of the record was written; the next one may succeed."""

    transient = True

    def __init__(self) -> None:
        super().__init__(
            "the pump has no file descriptor left for its value log; it writes again once connections are closed "
            "(raise the limit of open files, as LimitNOFILE of its service)"
        )


class StoreBusyError(StoreError):
    """More verdicts wait for a look than are taken."""

    transient = True

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} calls with verdicts on unknown Prewrites wait already")


class InvalidRecordError(StoreError):
    """A record's timestamps can't be stored (negative, or not below 2**63)."""

    way_out = "find who sends such records: TiDB doesn't"


class CorruptRecordError(StoreError):
    """A pointer leads to bytes that are no valid record."""

    way_out = "restore the file from a copy; reading goes on by itself"

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}: offset {offset}: {what}")
        self.path = path
        self.offset = offset


class IndexDamagedError(StoreError):
    """The index isn't what was written to it; it is being made again from the value log, and nothing is
    read meanwhile.
    """

    transient = True

    def __init__(self, path: object, what: str) -> None:
        super().__init__(
            f"the index {path} was damaged ({what}) and is being made again from the value log; reading goes on by"
            " itself when that is done"
        )


class MissedCommitError(StoreError):
    """A Commit came below what this reader had been given, so the reader lacks a transaction."""

    way_out = "repair the transaction's rows downstream of every reader, then remove the file that is named"

    def __init__(self, commit_ts: int, start_ts: int, path: str) -> None:
        super().__init__(
            f"the commit {commit_ts} of transaction {start_ts} came after readers had passed it (did PD's clock go"
            " back?), so this reader lacks it; repair its rows downstream of every reader, then let them go on with"
            f" `rm {path}`"
        )
        self.commit_ts = commit_ts


class WindowPurgedError(StoreError):
    """The range asked for begins before what garbage collection has removed."""

    way_out = "copy the data anew; a reader that is this far behind can't catch up"

    def __init__(self, after_ts: int, gc_ts: int) -> None:
        super().__init__(
            f"commits after {after_ts} were asked for, but everything through {gc_ts} has been purged by garbage "
            "collection (setting gc); a reader that is this far behind needs a new full copy of the data"
        )
        self.after_ts = after_ts
        self.gc_ts = gc_ts
