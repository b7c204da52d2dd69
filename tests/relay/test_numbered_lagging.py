"""A document that many change at a time, in a store whose lists lag: no change is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.relay import versioned_document as numbered
from sluice.relay.storage import LocalStorage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

TEXT = DocumentFormat(
    lambda words: " ".join(words).encode(), lambda data: data.decode().split(), list, ""
)
KEPT = 3


class Lagging(LocalStorage):
    """A folder of which one process's lists may be older than what is there, and whose steps can be
    come between.
    """

    lists_may_lag = True

    def __init__(self, root: Path) -> None:
        super().__init__(root, str(root))
        self.listed: list[list[str]] = []
        """What it is told first."""
        self.before_create: list[Callable[[], None]] = []
        self.after_create: list[Callable[[], None]] = []

    def names(self, path: str) -> list[str]:
        return self.listed.pop(0) if self.listed else super().names(path)

    def create(self, path: str, data: bytes) -> None:
        if self.before_create:
            self.before_create.pop()()
        super().create(path, data)
        if self.after_create:
            self.after_create.pop()()


def add(to: VersionedDocument[list[str]], word: str) -> None:
    to.change(lambda there: there if word in there else [*there, word])


def test_a_list_that_knows_of_nothing_yet_hides_no_change(tmp_path: Path) -> None:
    def document() -> tuple[Lagging, VersionedDocument[list[str]]]:
        storage = Lagging(tmp_path)
        return storage, VersionedDocument(storage, "words", TEXT, KEPT)

    (_, quick), (behind, late) = document(), document()
    for word in "abcdefgh":  # more than are kept where lists don't lag
        add(quick, word)
    behind.listed = [[] for _ in range(9)]
    assert late.load() == [*"abcdefgh"]
    add(late, "late")
    behind.listed = []
    assert quick.load() == late.load() == [*"abcdefgh", "late"]


def test_a_file_whose_name_was_free_again_is_not_taken_for_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered, "KEPT_WHERE_LISTS_LAG", KEPT)

    def document() -> tuple[Lagging, VersionedDocument[list[str]]]:
        storage = Lagging(tmp_path)
        return storage, VersionedDocument(storage, "words", TEXT, KEPT)

    (slow, late), (behind, other), (_, quick) = document(), document(), document()
    for word in "abc":
        add(quick, word)
    behind.listed = [quick._storage.names("words")]
    # 1 to 5 are gone
    slow.before_create = [lambda: [add(quick, word) for word in "defgh"] and None]
    # looks before `slow` sees that its name was free again
    slow.after_create = [lambda: add(other, "other")]
    add(late, "slow")
    assert sorted(quick.load()) == [*"abcdefgh", "other", "slow"]
