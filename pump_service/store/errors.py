"""Define the store's errors. Each message names what failed and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.errors import SluiceError


class StoreError(SluiceError):
    """Base of everything the store raises or passes to `done`."""

    hint = "check the disk and the pump's log, then start the pump again"


class StoreLockedError(StoreError):
    """Report that another process holds the data directory."""

    hint = "stop the other process, or give this pump its own data-dir"


class NewerDataError(StoreError):
    """Report that a newer version of Sluice wrote this data directory; it is left unchanged."""

    hint = (
        "start the version of the pump that wrote it, or a newer one, or give this pump another"
        " data-dir"
    )


class MixedDataError(StoreError):
    """Report that a data directory holds the other kind of transactions, binlogs or captured."""

    hint = "give a pump that captures from TiKV a data-dir of its own"


class CapturedStoreError(StoreError):
    """Report a request that only a store of binlogs serves."""

    hint = (
        "read a capturing pump with Sluice: a Drainer drops a transaction that shares its commit ts"
    )


class StoreClosedError(StoreError):
    """Report that the store is closed or closing, and accepts nothing."""

    transient = True


class StoreFailedError(StoreError):
    """Report that a write or fsync of the value log failed.

    What reached the disk is unknown, so nothing is accepted until the process restarts. An fsync
    that failed once can't be trusted when repeated.
    """


class NoSpaceError(StoreError):
    """Report less free space than `stop_write_at_available_space`.

    Only fake binlogs are accepted.
    """

    transient = True
    hint = "free space on the pump's disk: writes then resume without a restart"

    def __init__(self, available: int, threshold: int) -> None:
        # The original's text, which TiDB's operators know.
        super().__init__(
            f"no available space, available: {available}, StopWriteAtAvailableSpace: {threshold}"
        )
        self.available = available
        self.threshold = threshold


class NoDescriptorsError(StoreError):
    """Report that the process may open no more files.

    Nothing of the record was written; the next write may succeed.
    """

    transient = True

    def __init__(self) -> None:
        super().__init__(
            "the pump has no file descriptor left for its value log; it writes again once"
            " connections are closed (raise the limit of open files, as LimitNOFILE of its service)"
        )


class StoreBusyError(StoreError):
    """Report records that can't be checked now against what is here."""

    transient = True


class PrewriteRepeatedError(StoreError):
    """Report a Prewrite whose transaction has another one here already."""

    hint = (
        "find the client that sent one of both: TiDB sends the same bytes when it tries again, and"
        " `write-allowed-cn` names the clients that may write"
    )


class RefusedRecordsError(StoreError):
    """Report records of a group that were refused, by place; all others were written."""

    def __init__(self, refused: Mapping[int, StoreError]) -> None:
        super().__init__("; ".join(map(str, refused.values())))
        self.refused = refused


class InvalidRecordError(StoreError):
    """Report a record whose timestamps can't be stored (negative, or not below 2**63)."""

    hint = "find the client that sends such records: TiDB doesn't"


class CorruptRecordError(StoreError):
    """Report a pointer to bytes that are no valid record."""

    hint = "restore the file from a copy; reading then resumes without a restart"

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}: offset {offset}: {what}")
        self.path = path
        self.offset = offset


class IndexDamagedError(StoreError):
    """Report that the index lost or changed data.

    It is being rebuilt from the value log, and nothing can be read meanwhile.
    """

    transient = True

    def __init__(self, path: object, what: str) -> None:
        super().__init__(
            f"the index {path} was damaged ({what}) and is being made again from the value log;"
            " reading goes on by itself when that is done"
        )


class MissedCommitError(StoreError):
    """Report a Commit below this reader's position: the reader lacks a transaction."""

    hint = (
        "repair the transaction's rows downstream of every reader, then remove the file that is"
        " named"
    )

    def __init__(self, commit_ts: int, start_ts: int, path: str) -> None:
        super().__init__(
            f"the commit {commit_ts} of transaction {start_ts} came after readers had passed it"
            " (did PD's clock go back?), so this reader lacks it; repair its rows downstream of"
            f" every reader, then let them go on with `rm {path}`"
        )
        self.commit_ts = commit_ts


class WindowPurgedError(StoreError):
    """Report that the requested range begins below what garbage collection has removed."""

    hint = "copy the data again; a reader that is this far behind can't catch up"

    def __init__(self, after_ts: int, gc_ts: int) -> None:
        super().__init__(
            f"commits after {after_ts} were asked for, but everything through {gc_ts} has been"
            " purged by garbage collection (setting gc); a reader that is this far behind needs a"
            " new full copy of the data"
        )
        self.after_ts = after_ts
        self.gc_ts = gc_ts
