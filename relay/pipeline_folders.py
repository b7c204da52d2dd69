"""Folders for each of several pipelines that read one relay log.

    <url>/pipelines/<name>/…       a pipeline's downstream.json, stop.json, failures, control,
                                   overrides, aligned chunks

A pipeline without a name has them beside the windows, as there was only one once. One that got its
name later keeps them there: the downstream that is recorded there identifies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.relay.errors import RelayError
from sluice.relay.ownership import Ownership
from sluice.relay.storage import ByteWriter, Storage
from sluice.relay.url import folder_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["FOLDER", "SubStorage", "folder_of_pipeline", "pipeline_names"]

FOLDER = "pipelines"
_OWNED = "downstream.json"


class SubStorage:
    """A folder of a storage, as a storage."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self.url = folder_of(storage.url, folder)
        self._storage = storage
        self._folder = folder

    @property
    def lists_may_lag(self) -> bool:
        return self._storage.lists_may_lag

    @property
    def is_remote(self) -> bool:
        return self._storage.is_remote

    def new_file(self, path: str) -> ByteWriter:
        return self._storage.new_file(self._path_of(path))

    def new_whole_file(self, path: str) -> ByteWriter:
        return self._storage.new_whole_file(self._path_of(path))

    def new_temp_file(self, path: str) -> ByteWriter:
        return self._storage.new_temp_file(self._path_of(path))

    def create(self, path: str, data: bytes) -> None:
        self._storage.create(self._path_of(path), data)

    def replace(self, path: str, data: bytes) -> None:
        self._storage.replace(self._path_of(path), data)

    def read(self, path: str) -> bytes:
        return self._storage.read(self._path_of(path))

    def open(self, path: str) -> pyarrow.NativeFile:
        return self._storage.open(self._path_of(path))

    def names(self, path: str) -> list[str]:
        return self._storage.names(self._path_of(path))

    def names_after(self, path: str, after: str = "", limit: int | None = None) -> list[str]:
        return self._storage.names_after(self._path_of(path), after, limit)

    def sizes(self, path: str, after: str = "") -> dict[str, int]:
        return self._storage.sizes(self._path_of(path), after)

    def remove(self, path: str) -> None:
        self._storage.remove(self._path_of(path))

    def remove_empty_directory(self, path: str) -> None:
        self._storage.remove_empty_directory(self._path_of(path))

    def sweep(self, path: str, older_than_s: float) -> int:
        return self._storage.sweep(self._path_of(path), older_than_s)

    def _path_of(self, path: str) -> str:
        return f"{self._folder}/{path}" if path else self._folder


def folder_of_pipeline(storage: Storage, name: str, downstream: str) -> str:
    """Return the folder name of the pipeline that writes to `downstream`.

    It is `name`, or "" for beside the windows. Raises RelayError if the pipeline has no name and
    another one has its files beside the windows, OSError.
    """
    others = storage.names(FOLDER)
    if not name and not others:
        return ""
    try:
        owned = Ownership.from_bytes(storage.read(_OWNED)).downstream
    except (FileNotFoundError, ValueError):  # a reader of its content raises what is wrong with it
        owned = ""
    if owned == downstream:
        return ""
    if name:
        return name
    raise RelayError(
        f"{storage.url}: the pipelines {', '.join(others)} read this relay log, and one that writes"
        f" to {downstream}, without a name, can't be distinguished from them",
        hint=(
            "name it as its file in $SLUICE_PIPELINES is (`--pipeline`), or with [relay] pipeline"
        ),
    )


def pipeline_names(storage: Storage) -> list[str]:
    """Return the names of the pipelines that have files of their own in the relay log.

    "" is the one beside the windows, and comes first. Raises OSError.
    """
    try:
        storage.read(_OWNED)
        beside = [""]
    except FileNotFoundError:
        beside = []
    return beside + storage.names(FOLDER)
