"""A small document that several processes change: each change is a new file.

It has the next number and is created exclusively. Of two concurrent writers one starts over, from
what the other wrote. The newest counts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.format_version import NewerFormatError
from sluice.relay.storage import Storage

__all__ = ["DocumentFormat", "VersionedDocument"]

_NAME = re.compile(r"(\d{12})\.json\Z")
_MAX_ATTEMPTS = 100
KEPT_WHERE_LISTS_LAG = 64
"""The least number of files that is kept where lists lag.

A list that shows none of them still leads to the newest, if those after the last one it shows are
there.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DocumentFormat(Generic[T]):
    """A document's text format: `parse` raises ValueError that describes what is wrong.

    `first` gives the content before the first file. Two documents that different processes write
    for different reasons must differ, if only in a token: a store can't distinguish two attempts of
    one writer from two writers of the same bytes.
    """

    text: Callable[[T], bytes]
    parse: Callable[[bytes], T]
    first: Callable[[], T]
    hint: str
    """The hint for a file that can't be read."""


class VersionedDocument(Generic[T]):
    """The document in a folder of a relay log's storage."""

    def __init__(
        self, storage: Storage, folder: str, form: DocumentFormat[T], kept: int | None = None
    ) -> None:
        """Open the document in a folder.

        `kept`: the number of files that are kept, more where lists lag, None for all. A writer that
        changes an older one finds out by the file before its own, which is gone.
        """
        self._storage = storage
        self._folder = folder
        self._form = form
        self._max_versions = kept

    def load(self) -> T:
        """Return the newest content. Raises RelayCorruptError, which names the file."""
        return self.newest()[1]

    def newest(self) -> tuple[int, T]:
        """Return the newest number and content, 0 and the first content before any change.

        Raises RelayCorruptError, which names the file.
        """
        for _ in range(_MAX_ATTEMPTS):
            number, text = self.text()
            if text is None:
                first = self._form.first()
                if not self.number():
                    return 0, first
                continue
            return number, self._parsed(number, text)
        raise self._contended()

    def versions(self, most: int) -> list[T]:
        """Return the last `most` contents that are kept, the oldest first.

        The content before any change is not among them. Raises RelayCorruptError, which names the
        file.
        """
        last, newest = self.newest()
        found = []
        for number in range(max(1, last - most + 1), last):
            with contextlib.suppress(FileNotFoundError):
                found.append(self._parsed(number, self._storage.read(self._path(number))))
        return [*found, newest] if last else []

    def _parsed(self, number: int, text: bytes) -> T:
        path = self._path(number)
        try:
            return self._form.parse(text)
        except NewerFormatError as error:
            raise error.at(f"{self._storage.url}/{path}") from None
        except ValueError as error:
            raise RelayCorruptError(
                f"{self._storage.url}/{path}: {error}", hint=self._form.hint
            ) from None

    def text(self) -> tuple[int, bytes | None]:
        """Return the newest number, and that file's bytes.

        0 and None before any change.
        """
        for _ in range(_MAX_ATTEMPTS):
            number = self.number()
            if not number:
                return 0, None
            with contextlib.suppress(FileNotFoundError):
                return number, self._storage.read(self._path(number))
        raise self._contended()

    def number(self) -> int:
        """Return the newest number, 0 if there is none; cheaper than `newest`."""
        if not self._storage.lists_may_lag:
            return max(self._numbers(), default=0)
        for _ in range(_MAX_ATTEMPTS):
            number = max(self._numbers(), default=0)
            while self._exists(number + 1):
                number += 1
            # What was read long before may have been followed under a name that was free again (see
            # `_put`), and a list that lags leads there. The file before such a one is gone, the one
            # before the newest is not.
            if number < 2 or self._max_versions is None or self._exists(number - 1):
                return number
        raise self._contended()

    def change(self, change: Callable[[T], T]) -> T:
        """Durably put what `change` makes of the newest in its place; what is there now.

        `change` may be called several times; what it raises is raised, and nothing has changed
        then.
        """
        for _ in range(_MAX_ATTEMPTS):
            number, before = self.newest()
            after = change(before)
            if after == before or self._put(number, after):
                return after
        raise self._contended()

    def _put(self, number: int, after: T) -> bool:
        """Put the document behind the one with that number; False if another has been put there."""
        path = self._path(number + 1)
        try:
            self._storage.create(path, self._form.text(after))
        except FileExistsError:
            return False
        if self._max_versions is None:
            return True
        kept = (
            max(self._max_versions, KEPT_WHERE_LISTS_LAG)
            if self._storage.lists_may_lag
            else self._max_versions
        )
        numbers = self._numbers()
        gone = not self._exists(number) if number else max(numbers, default=0) > kept
        if gone:  # changed often since it was read: the name was free again
            self._storage.remove(path)
            return False
        for old in numbers[:-kept]:
            self._storage.remove(self._path(old))
        return True

    def _numbers(self) -> list[int]:
        return sorted(
            int(match[1]) for match in map(_NAME.match, self._storage.names(self._folder)) if match
        )

    def _exists(self, number: int) -> bool:
        try:
            self._storage.read(self._path(number))
        except FileNotFoundError:
            return False
        return True

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012d}.json"

    def _contended(self) -> RelayError:
        return RelayError(
            f"{self._storage.url}/{self._folder}: changed by others all the time",
            hint="try again",
            transient=True,
        )
