"""Define the errors of bootstraps and backfills."""

from __future__ import annotations

from sluice.errors import RequestError


class CopyError(RequestError):
    """Copying can't begin, or can't continue; the message has the reason and the remedy.

    What is downstream so far is whole.
    """


class DumpError(CopyError):
    """A dump that can't be read.

    `file` and `offset` (bytes from its beginning, uncompressed) locate it.
    """

    def __init__(self, file: str, offset: int | None, found: str) -> None:
        super().__init__(f"{file}{'' if offset is None else f', byte {offset}'}: {found}")
        self.file = file
        self.offset = offset
        self.found = found

    def __reduce__(self) -> tuple[type[DumpError], tuple[str, int | None, str]]:
        return type(self), (self.file, self.offset, self.found)


class BackfillError(RequestError):
    """A backfill can't begin, or can't continue; the message has the reason and the remedy.

    What it has done so far is whole.
    """
