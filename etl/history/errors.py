"""Define the errors of the past: of archiving, retention, snapshots, as-of, searches and undo."""

from __future__ import annotations

import shlex
from typing import ClassVar

from sluice.errors import RequestError, SluiceError

__all__ = [
    "ArchiveGapError",
    "AsOfError",
    "ConditionError",
    "EmptyHistoryError",
    "FindError",
    "NotArchivedError",
    "NotYetLandedError",
    "OtherClusterError",
    "RetainError",
    "SearchDeadlineError",
    "SnapshotError",
    "TooManyChangesError",
    "UndoError",
    "restore_hint",
]


class NotYetLandedError(RequestError):
    """Windows that are to be archived aren't in the relay log yet."""

    hint = "wait until landing has come so far (`sluice status`), or name an earlier moment"


class ArchiveGapError(SluiceError):
    """Windows that follow the archive's end are in the relay log no longer."""

    hint = (
        "bring the relay log's files back from a copy; or give [archive] url another place, where"
        " a new archive begins with what the relay log has, and make a snapshot: the old one stays"
        " readable"
    )


class OtherClusterError(SluiceError):
    """The archive keeps another cluster's past."""

    hint = "give [archive] url a place of its own for each cluster"


class AsOfError(SluiceError):
    """A table as of a moment that can't be computed exactly; names the table, and where it ends."""

    hint = (
        "ask for another moment, or begin with a snapshot that was made after it: `sluice snapshot"
        " make`"
    )
    exit_code: ClassVar[int] = 1


class FindError(RequestError, ValueError):
    """An impossible search; the message names the part that is."""


class EmptyHistoryError(FindError):
    """Nothing has landed yet, so there is no past to look into."""

    hint = "`sluice status` says whether pumps and landing run; the DAG `replicate` lands"


class ConditionError(FindError):
    """A condition that can't be read, or that makes no sense for a column."""

    hint = (
        "conditions are comparisons of columns with constants or columns (= <> < <= > >= <=> IN"
        " BETWEEN LIKE IS NULL), with AND, OR, NOT and parentheses; old.c and new.c are a column"
        " before and after the change"
    )


class SearchDeadlineError(FindError):
    """A search that a page waits for has used up its time."""

    hint = "narrow the time or the tables; `sluice find` with the same --where has no time limit"


class RetainError(SluiceError):
    """Something can't be removed, since what must be there instead isn't, or can't be read."""

    hint = "`sluice archive check` reads the whole archive; bring back what is damaged from a copy"


class NotArchivedError(RetainError):
    """The archive holds some windows otherwise than the relay log.

    The relay log keeps them.
    """

    hint = (
        "the relay log still has these windows: move the archive elsewhere, and it is made again"
        " from there; or bring back what is damaged from a copy"
    )


class SnapshotError(RequestError):
    """A snapshot can't be made, or not in this way; the message has the reason and a way out.

    Nothing was changed.
    """


class UndoError(RequestError, ValueError):
    """Names the transaction and what about it can't be taken back."""

    hint = "restore the moment before it beside what is there, and take the rows from it"


class TooManyChangesError(UndoError):
    """A range that holds more row changes than are taken back as one."""


def restore_hint(commit_ts: int, table: str = "") -> str:
    """Return the hint to restore the moment before a commit, of one table (full name) or all."""
    of = f" --table {shlex.quote(table)}" if table else ""
    return (
        "restore the moment before it beside what is there, and take the rows from it: `sluice"
        f" restore --until before:{commit_ts}{of}`"
    )
