"""Find the lake's live files by their names alone.

A file's name has the range of commit timestamps that it holds: `<lo>-<hi>-<token>.parquet`. Files
that were compacted are gone a moment after the compacted one is there, and in between the folder
holds both: then the widest counts. Two attempts to write a segment may both have left its files:
then either counts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from sluice.relay.archive import LakeFile
from sluice.relay.storage import Storage

__all__ = ["live_files", "remove_superseded"]

_NAME = re.compile(r"(\d{20})-(\d{20})-[^/]*\.parquet\Z")


def _range_of(path: str) -> tuple[int, int]:
    """Parse the range `(lo, hi]` of TSO of a file's name. Raises ValueError."""
    match = _NAME.search(path)
    if match is None:
        raise ValueError(f"{path} isn't a file of the lake")
    return int(match[1]), int(match[2])


def live_files(paths: Iterable[str]) -> list[str]:
    """Return which paths of one or several folders count: each change is in exactly one.

    Raises ValueError.
    """
    found = []
    by_folder = sorted(paths, key=lambda path: path.rpartition("/")[0])
    for _, group in itertools.groupby(by_folder, key=lambda path: path.rpartition("/")[0]):
        through = -1
        for path in sorted(group, key=lambda path: (_range_of(path)[0], -_range_of(path)[1], path)):
            hi = _range_of(path)[1]
            if hi > through:
                found.append(path)
                through = hi
    return found


def remove_superseded(
    storage: Storage, before: Sequence[LakeFile], after: Sequence[LakeFile]
) -> None:
    """Remove the files of segments `before`, once others have replaced them.

    Until then a reader of the folders sees rows twice. Raises OSError.
    """
    for path in sorted({file.path for file in before} - {file.path for file in after}):
        storage.remove(path)
