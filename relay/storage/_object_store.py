"""The relay log in an object store: S3, Google Cloud Storage, Azure. `relay.storage.protocol` has what is promised.

A file is created with the store's own condition (`If-None-Match: *`, or what the store has for it), so an upload that
was given up and arrives late never takes the place of what was created meanwhile. A store that ignores the condition is
refused.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import obstore
import pyarrow
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore, from_url

from relay.errors import RelayError
from relay.storage._patience import Patience
from relay.storage.protocol import Sink
from relay.storage.seekable import SeekableFile
from relay.url import Place

TIMEOUT_S = 60.0
"""How long one call to a store may take, its retries among it."""
_ATTEMPT = timedelta(seconds=30)
_RETRYING = timedelta(seconds=20)  # a retry is begun until then
_BUFFER_BYTES = 8 * 2**20
_PROBE = "conditional-create-probe"

Result = TypeVar("Result")


def open_object_storage(place: Place, url: str) -> ObjectStorage:
    """The store at a place. Credentials come from the environment. Raises RelayError."""
    options = dict(place.options)
    config: dict[str, Any] = {}
    client: dict[str, Any] = {"timeout": _ATTEMPT, "connect_timeout": timedelta(seconds=10)}
    if "region" in options:
        config["region"] = options["region"]
    if "endpoint_override" in options:
        scheme = options.get("scheme", "https")
        config["endpoint"] = f"{scheme}://{options['endpoint_override']}"
        client["allow_http"] = scheme == "http"
    try:
        store = from_url(
            place.store,
            config=config or None,
            client_options=client,
            retry_config={"max_retries": 3, "retry_timeout": _RETRYING},
        )
    except (BaseError, ValueError) as error:
        raise RelayError(f"relay URL {url}: {_first_line(error)}") from None
    return ObjectStorage(store, url, TIMEOUT_S)


class ObjectStorage:
    """An object store. Every call to it ends within `timeout_s`, with TimeoutError; other failures are OSError."""

    def __init__(self, store: ObjectStore, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self._store = store
        self._patience = Patience(url, timeout_s)
        self._proved = False

    def new_file(self, path: str) -> Sink:
        with contextlib.suppress(FileNotFoundError):
            self._call(f"looking for {path}", obstore.head, path)
            raise FileExistsError(path)
        return _ObjectSink(
            self, path, self._call(f"opening {path}", obstore.open_writer, path, buffer_size=_BUFFER_BYTES)
        )

    def new_whole_file(self, path: str) -> Sink:
        return self.new_file(path)

    def new_scratch(self, path: str) -> Sink:
        return self.new_file(path)

    def create(self, path: str, data: bytes) -> None:
        self._prove_condition()
        try:
            self._create(path, data)
        except FileExistsError:
            # The store may have taken the first of two attempts whose answer was lost.
            if self.read(path) != data:
                raise

    def replace(self, path: str, data: bytes) -> None:
        self._call(f"writing {path}", obstore.put, path, data, use_multipart=False)

    def read(self, path: str) -> bytes:
        data: bytes = self._call(f"reading {path}", lambda store: obstore.get(store, path).bytes().to_bytes())
        return data

    def open(self, path: str) -> pyarrow.NativeFile:
        size = self._call(f"opening {path}", obstore.head, path)["size"]
        return pyarrow.PythonFile(_ObjectFile(self, path, size), mode="r")

    def names(self, path: str) -> list[str]:
        found = self._list(path)
        paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
        return sorted(name for name in (_base(one) for one in paths) if not name.startswith("."))

    def sizes(self, path: str) -> dict[str, int]:
        found = {_base(item["path"]): int(item["size"]) for item in self._list(path)["objects"]}
        return {name: size for name, size in found.items() if not name.startswith(".")}

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call(f"removing {path}", obstore.delete, path)

    def remove_empty_directory(self, path: str) -> None:
        """There are none."""

    def sweep(self, path: str, older_than_s: float) -> int:
        return 0  # uploads are published whole; the store drops abandoned ones by its own rules

    def _create(self, path: str, data: bytes) -> None:
        self._call(f"creating {path}", obstore.put, path, data, mode="create", use_multipart=False)

    def _prove_condition(self) -> None:
        """Once a process: a file that exists can't be created. RelayError from a store that says it can."""
        if self._proved:
            return
        for _ in range(2):  # the first attempt may be the one that makes it
            try:
                self._create(_PROBE, secrets.token_bytes(8))
            except FileExistsError:
                self._proved = True
                return
        raise RelayError(
            f"{self.url}: the store replaced a file that was to be created only if it isn't there (If-None-Match), so a"
            " late upload could replace a landed window; use a store or a version of it that honours the condition, or"
            " a file system"
        )

    def _list(self, path: str) -> Any:
        return self._call(
            f"listing {path}", lambda store: obstore.list_with_delimiter(store, f"{path}/" if path else None)
        )

    def _call(self, what: str, function: Callable[..., Result], *args: Any, **options: Any) -> Result:
        return self.guarded(what, function, self._store, *args, **options)

    def guarded(self, what: str, function: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """The function's result, in time, its errors as OSError."""
        try:
            return self._patience.call(what, function, *args, **options)
        except AlreadyExistsError:
            raise FileExistsError(f"{self.url}: {what}: it exists") from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise PermissionError(f"{self.url}: {what}: {_first_line(error)}") from None
        except BaseError as error:
            raise OSError(f"{self.url}: {what}: {_first_line(error)}") from None


class _ObjectFile(SeekableFile):
    """An object that is read in ranges."""

    def __init__(self, storage: ObjectStorage, path: str, size: int) -> None:
        super().__init__(size)
        self._storage, self._path = storage, path

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        read, path = self._storage._call, self._path
        data: bytes = read(
            f"reading {path}", lambda store: obstore.get_range(store, path, start=self._at, end=end).to_bytes()
        )
        self._at += len(data)
        return data


class _ObjectSink:
    """An upload. It is published when it ends; given up, nothing of it is seen."""

    def __init__(self, storage: ObjectStorage, path: str, writer: Any) -> None:
        self._storage, self._path, self._writer = storage, path, writer
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> int:
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            self._flush()
        return len(data)

    def _flush(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        if data:
            self._storage.guarded(f"writing {self._path}", self._writer.write, data)

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
            self._storage.guarded(f"closing {self._path}", self._writer.close)
        self._writer = None


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
