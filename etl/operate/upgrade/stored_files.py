"""Look at the files of a relay log or an archive: which format each kind has.

Every kind of small document is read, of documents that are changed by compare-and-set the newest,
which alone counts. Windows and segments are as many as there was traffic: of each hour or day the
oldest and the newest are read, and of more than a hundred folders some between the first and the
last. That suffices, since no version lands or archives behind what it can't read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sluice.errors import FAIL, OK, WARN, CheckResult, ours
from sluice.etl.operate.upgrade.file_kinds import FileKind, Place
from sluice.relay.format_version import FORMAT, NewerFormatError
from sluice.relay.pipeline_folders import FOLDER
from sluice.relay.storage import Storage
from sluice.tidb.table_name import abbreviate

__all__ = ["KindSeen", "look_at_files"]

_MAX_FOLDERS, _MAX_NAMED = 100, 3
_READERS = 16
"""An object store answers after tens of milliseconds, however many ask."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d)?")
_NUMBERED = re.compile(r"\d{12}\.json")
_OF_A_PIPELINE = re.compile(rf"{FOLDER}/[^/]+/")


@dataclass(slots=True)
class KindSeen:
    """What was found of one kind of file.

    `formats`: those that were found, ascending; `reads`: the newest that this version reads;
    `files`: how many were read. `newer`: those of a later version; `unreadable`: other files that
    this version can't read, each with the reason.
    """

    place: str
    kind: str
    reads: int
    is_spare: bool
    files: int = 0
    formats: set[int] = field(default_factory=set)
    newer: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return the values for scripts."""
        return {
            "place": self.place,
            "kind": self.kind,
            "files": self.files,
            "formats": sorted(self.formats),
            "reads": list(range(1, self.reads + 1)),
            "newer": self.newer,
            "unreadable": self.unreadable,
        }

    def results(self) -> Iterator[CheckResult]:
        """Yield the results for people: one if all is well."""
        state = WARN if self.is_spare else FAIL
        if self.newer:
            yield CheckResult(
                self.place, state, f"{self.kind}: {abbreviate(self.newer, _MAX_NAMED)}",
                "they are passed over, and nothing is lost" if self.is_spare
                else NewerFormatError.hint,
            )  # fmt: skip
        if self.unreadable:
            yield CheckResult(
                self.place, state, f"{self.kind}: {abbreviate(self.unreadable, _MAX_NAMED)}",
                "they are passed over, and nothing is lost" if self.is_spare
                else "restore the file from a copy; if a later version wrote it, install that one",
            )  # fmt: skip
        if not self.newer and not self.unreadable:
            found = " and ".join(map(str, sorted(self.formats)))
            reads = "1" if self.reads == 1 else f"1 to {self.reads}"
            yield CheckResult(
                self.place, OK,
                f"{self.kind}: format {found}, this version reads {reads}; {self.files:,} read",
            )  # fmt: skip


def look_at_files(
    storage: Storage, place: Place, *, all_files: bool = False
) -> tuple[list[KindSeen], list[CheckResult]]:
    """Return what was found of each kind that is there, and the results; nothing is changed.

    `all_files`: read all of them. What can't be read is a result, and so are files that this
    version doesn't know.
    """
    seen: dict[str, KindSeen] = {}
    unknown: list[str] = []
    try:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="formats") as pool:
            paths = _paths(storage, "", place, all_files=all_files)
            for path, kind, outcome in pool.map(
                lambda path: _read(storage, path, place.kind_of(_own(path))), paths
            ):
                if kind is None:
                    unknown.append(path)
                elif outcome is not None:
                    entry = seen.setdefault(
                        kind.name, KindSeen(place.name, kind.name, kind.reads, kind.is_spare)
                    )
                    _count(entry, f"{storage.url}/{path}", outcome)
    except Exception as error:
        reason = ours(error)
        return list(seen.values()), [
            CheckResult(place.name, FAIL, f"{storage.url}: {reason}", reason.hint)
        ]
    kinds = [seen[kind.name] for kind in place.kinds if kind.name in seen]
    return kinds, [
        *(result for kind in kinds for result in kind.results()),
        *_other_results(storage, place, kinds, unknown),
    ]


def _other_results(
    storage: Storage, place: Place, kinds: list[KindSeen], unknown: list[str]
) -> Iterator[CheckResult]:
    if not kinds and not unknown:
        yield CheckResult(place.name, OK, f"{storage.url}: nothing is there yet")
    if unknown:
        yield CheckResult(
            place.name,
            WARN,
            f"{storage.url}: this version doesn't know {abbreviate(sorted(unknown), _MAX_NAMED)}",
            "a later version may have written them: see its changelog before you go on without it",
        )


def _count(entry: KindSeen, where: str, outcome: int | Exception) -> None:
    entry.files += 1
    if isinstance(outcome, int):
        entry.formats.add(outcome)
    elif isinstance(outcome, NewerFormatError):
        entry.formats.add(outcome.found)
        entry.newer.append(
            f"{where} has format {outcome.found}, this version of Sluice reads {entry.reads}"
        )
    else:
        entry.unreadable.append(f"{where}: {outcome}")


def _own(path: str) -> str:
    """Return a file's path as that of a pipeline that has no folder of its own."""
    return _OF_A_PIPELINE.sub("", path, count=1) if path.startswith(f"{FOLDER}/") else path


def _paths(storage: Storage, folder: str, place: Place, *, all_files: bool) -> Iterator[str]:
    """Yield the files to be read in a folder and below."""
    files = storage.sizes(folder)
    folders = [name for name in storage.names(folder) if name not in files]
    prefix = f"{folder}/" if folder else ""
    names = [name for name in sorted(files) if not _is_data(place, f"{prefix}{name}")]
    if not all_files:
        names = list(_those_that_count(names, folder))
        folders = _some(folders)
    yield from (f"{prefix}{name}" for name in names)
    for name in folders:
        if not _is_data(place, f"{prefix}{name}"):
            yield from _paths(storage, f"{prefix}{name}", place, all_files=all_files)


def _is_data(place: Place, path: str) -> bool:
    return place.data.fullmatch(_own(path)) is not None


def _those_that_count(names: list[str], folder: str) -> Iterable[str]:
    if names and all(map(_NUMBERED.fullmatch, names)):
        return names[-1:]
    if _TIME.fullmatch(folder.rpartition("/")[2]):
        return dict.fromkeys([*names[:1], *names[-1:]])
    return names


def _some(folders: list[str]) -> list[str]:
    if len(folders) <= _MAX_FOLDERS or not all(map(_TIME.fullmatch, folders)):
        return folders
    step = (len(folders) - 1) / (_MAX_FOLDERS - 1)
    return [folders[round(number * step)] for number in range(_MAX_FOLDERS)]


def _read(
    storage: Storage, path: str, kind: FileKind | None
) -> tuple[str, FileKind | None, int | Exception | None]:
    """Return the format of a file, or why this version can't read it; None if it is gone."""
    if kind is None:
        return path, None, None
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return path, kind, None
    try:
        kind.parse(data)
        return path, kind, _format_of(data)
    except NewerFormatError as error:
        return path, kind, error
    except Exception as error:
        # what a parser makes of another version's file is not foreseeable, and must be no defect
        return path, kind, error


def _format_of(data: bytes) -> int:
    """Return the format of a file that could be read; packed ones have had one format so far."""
    found = json.loads(data) if data[:1] == b"{" else None
    return int(found.get("format", FORMAT)) if isinstance(found, dict) else FORMAT
