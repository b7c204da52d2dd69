"""The relay log in an object store: S3, Google Cloud Storage, Azure.

`sluice.relay.storage.protocol` has the promises.

A file is created with the store's own condition (`If-None-Match: *`, or the store's equivalent). So
an upload that was given up and arrives late never replaces what was created meanwhile. A store that
ignores the condition is refused. A file is replaced on the condition that it still is the version
that was there when the replacing began, so a late arrival doesn't undo what was written after it.

A request may fail, or time out, after the store has fulfilled it. So a caller that is refused by a
condition, or gets no answer, compares what is there with what it has sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import obstore
import pyarrow
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from sluice.relay.errors import RelayError
from sluice.relay.storage._aws_session import aws_provider
from sluice.relay.storage._object_file import PREFIX_BYTES, ObjectFile
from sluice.relay.storage._store_errors import ChangedError, UnknownConditionError, translate_error
from sluice.relay.storage._upload import ObjectFileWriter
from sluice.relay.storage.credentials import StoreCredentials
from sluice.relay.storage.protocol import ByteWriter
from sluice.relay.url import StorageLocation

Result = TypeVar("Result")

log = logging.getLogger("sluice")

CALL_TIMEOUT_S = 60.0
"""The longest that one call to a store may take, retries included."""
_ATTEMPT_TIMEOUT = timedelta(seconds=30)
_RETRIES = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=20),  # a retry is begun until then
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_MAX_CONFLICT_RETRIES = 20
_PLAIN_HTTP_OPTIONS = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
"""The environment variables that allow http.

What obstore is given for the client replaces all that they set there.
"""
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_PROBE_FILE = "conditional-create-probe"


def open_object_storage(
    place: StorageLocation, url: str, given: StoreCredentials | None = None
) -> ObjectStorage:
    """Open the store at a location.

    Credentials are `given`, or come from the environment, or from the machine's role. Raises
    RelayError, which repeats none.
    """
    options = dict(place.options)
    config: dict[str, Any] = dict(given.options) if given else {}
    client: dict[str, Any] = {"timeout": _ATTEMPT_TIMEOUT, "connect_timeout": timedelta(seconds=10)}
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if place.store.startswith(("az:", "azure:")) and account:
        # obstore would find it, too, and panic where it shows the store
        config.setdefault("account_name", account)
    if "region" in options:
        config["region"] = options["region"]
    if "endpoint_override" in options:
        scheme = options.get("scheme", "https")
        config["endpoint"] = f"{scheme}://{options['endpoint_override']}"
    plain = any(os.environ.get(name, "").lower() in ("true", "1") for name in _PLAIN_HTTP_OPTIONS)
    if plain or str(config.get("endpoint", "")).startswith("http://"):
        client["allow_http"] = True
    # AWS's order: keys in the environment count before the profile that it names
    profile = "" if os.environ.get("AWS_ACCESS_KEY_ID") else os.environ.get("AWS_PROFILE", "")
    aws = given.aws if given else {"profile_name": profile} if profile else {}
    try:
        provider = aws_provider(config, aws) if aws and place.store.startswith("s3:") else None
        store = from_url(
            place.store,
            config=config or None,
            client_options=client,
            retry_config=_RETRIES,
            **({"credential_provider": provider} if provider else {}),
        )
    except (BaseError, ValueError) as error:
        raise RelayError(f"relay URL {url}: {str(error).splitlines()[0]}") from None
    # S3, Google's and Azure's lists are as consistent as the rest; with others that speak S3
    # it is unknown.
    is_another = any(os.environ.get(name) for name in _ENDPOINTS) or "endpoint" in config
    return ObjectStorage(
        store, url, CALL_TIMEOUT_S, lists_may_lag=place.store.startswith("s3:") and is_another
    )


class ObjectStorage:
    """An object store.

    Every call to it ends within `timeout_s`, with TimeoutError; other failures are OSError.
    """

    is_remote = True

    def __init__(
        self,
        store: ObjectStore,
        url: str,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        lists_may_lag: bool = False,
    ) -> None:
        self.url = url
        self.lists_may_lag = lists_may_lag
        self.store = store
        self.timeout_s = timeout_s
        self._call_timeout = CallTimeout(url, timeout_s)
        self._is_condition_proved = False
        self._knows_versions = True

    def new_file(self, path: str) -> ByteWriter:
        return ObjectFileWriter(self, path)

    def new_whole_file(self, path: str) -> ByteWriter:
        return ObjectFileWriter(self, path)

    def new_temp_file(self, path: str) -> ByteWriter:
        return ObjectFileWriter(self, path)

    def create(self, path: str, data: bytes) -> None:
        self._prove_condition()
        self.create_small(path, data)

    def create_small(self, path: str, data: bytes) -> None:
        """Create a file as `create` does, under a name that only the caller uses.

        The store's condition isn't proved first.
        """
        try:
            self._put(f"creating {path}", path, data, "create")
        except PermissionError:
            raise
        except OSError:
            # It may have been done: the answer was lost, and obstore, too, tries again and is
            # refused then.
            if not self._holds(path, data):
                raise

    def replace(self, path: str, data: bytes) -> None:
        what = f"writing {path}"
        for _ in range(_MAX_CONFLICT_RETRIES):
            version = self._version(path)
            try:
                self._put(what, path, data, version)
                return
            except UnknownConditionError:
                if version == "overwrite":
                    raise
                if self._knows_versions:  # another thread may have found out first
                    self._knows_versions = False
                    log.warning(
                        "%s: the store can't replace a file only if it is as it was (If-Match)",
                        self.url,
                    )
            except PermissionError:
                raise
            except (ChangedError, FileExistsError):
                if self._holds(path, data):
                    return
            except OSError:
                if not self._holds(path, data):
                    raise
                return
        raise OSError(f"{self.url}: {what}: changed by others all the time; try again")

    def read(self, path: str) -> bytes:
        data: bytes = self._call(
            f"reading {path}", lambda store: obstore.get(store, path).bytes().to_bytes()
        )
        return data

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`."""
        data: bytes = self._call(
            f"reading {path}",
            lambda store: obstore.get_range(store, path, start=start, end=end).to_bytes(),
        )
        return data

    def size(self, path: str) -> int | None:
        """Return a file's size, None if it isn't there."""
        try:
            return int(self._call(f"looking for {path}", obstore.head, path)["size"])
        except FileNotFoundError:
            return None

    def open(self, path: str) -> pyarrow.NativeFile:
        size, beginning = self._call(f"opening {path}", _size_and_prefix, path)
        return pyarrow.PythonFile(ObjectFile(self, path, size, beginning), mode="r")

    def names(self, path: str) -> list[str]:
        found = self._list(path)
        paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
        return sorted(
            name for name in (_base_name(one) for one in paths) if not name.startswith(".")
        )

    def names_after(self, path: str, after: str = "", limit: int | None = None) -> list[str]:
        folder = f"{path}/"

        def listed(store: ObjectStore) -> Any:
            offset = f"{folder}{after}" if after else None
            if limit is None:
                return obstore.list(store, folder, offset=offset).collect()
            return next(iter(obstore.list(store, folder, offset=offset, chunk_size=limit)), [])

        found = self._call(f"listing {path}", listed)
        return sorted(_base_name(item["path"]) for item in found)

    def sizes(self, path: str, after: str = "") -> dict[str, int]:
        found = {
            _base_name(item["path"]): int(item["size"]) for item in self._list(path)["objects"]
        }
        return {
            name: size for name, size in found.items() if name > after and not name.startswith(".")
        }

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call(f"removing {path}", obstore.delete, path)

    def remove_empty_directory(self, path: str) -> None:
        """Do nothing: object stores have no directories."""

    def sweep(self, path: str, older_than_s: float) -> int:
        return 0  # uploads are published whole; the store drops abandoned ones by its own rules

    def _put(self, what: str, path: str, data: bytes, mode: Any) -> None:
        self._call(what, obstore.put, path, data, mode=mode, use_multipart=False)

    def _version(self, path: str) -> Any:
        """Return the condition for replacing a file.

        It is that the version is the present one, or that there still is none.
        """
        if not self._knows_versions:
            return "overwrite"
        try:
            found = self._call(f"looking for {path}", obstore.head, path)
        except FileNotFoundError:
            return "create"
        return {name: found[name] for name in ("e_tag", "version") if found.get(name) is not None}

    def _holds(self, path: str, data: bytes) -> bool:
        """Return whether a file has this content; False if that is unknown.

        One that differs is read once more: it may have been damaged on the way here.
        """
        try:
            return self.read(path) == data or self.read(path) == data
        except OSError:
            return False

    def _prove_condition(self) -> None:
        """Check once a process that an existing file can't be created.

        Raises RelayError for a store that creates it.
        """
        if self._is_condition_proved:
            return
        for _ in range(2):  # the first attempt may be the one that makes it
            try:
                self._put(f"creating {_PROBE_FILE}", _PROBE_FILE, secrets.token_bytes(8), "create")
            except FileExistsError:
                self._is_condition_proved = True
                return
        raise RelayError(
            f"{self.url}: the store replaced a file that was to be created only if it isn't there"
            " (If-None-Match), so a late upload could replace a landed window; use a store or a"
            " version of it that honours the condition, or a file system"
        )

    def _list(self, path: str) -> Any:
        return self._call(
            f"listing {path}",
            lambda store: obstore.list_with_delimiter(store, f"{path}/" if path else None),
        )

    def _call(
        self, what: str, function: Callable[..., Result], *args: Any, **options: Any
    ) -> Result:
        return self.guarded(what, function, self.store, *args, **options)

    def guarded(
        self, what: str, function: Callable[..., Result], *args: Any, **options: Any
    ) -> Result:
        """Return the function's result within the time limit, with its errors as OSError."""
        try:
            return self._call_timeout.call(what, function, *args, **options)
        except (BaseError, FileNotFoundError, NotImplementedError) as error:
            raise translate_error(self.url, what, error) from None


def _size_and_prefix(store: ObjectStore, path: str) -> tuple[int, bytes]:
    """Return a file's size and its first bytes."""
    try:
        found = obstore.get(store, path, options={"range": (0, PREFIX_BYTES)})
        return found.meta["size"], found.bytes().to_bytes()
    except BaseError:
        if obstore.head(store, path)["size"]:
            raise
        return 0, b""  # of an empty file there is no range


def _base_name(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


class CallTimeout:
    """Call functions in threads of their own and wait at most `seconds` for each.

    `name` is used in errors.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds

    def call(
        self, what: str, function: Callable[..., Result], *args: Any, **options: Any
    ) -> Result:
        """Return the function's result, or raise its error.

        Raises TimeoutError after the time limit; the call goes on by itself then, so its effect may
        still come.
        """
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((True, function(*args, **options)))
            except BaseException as error:
                answers.put((False, error))

        threading.Thread(target=run, name="relay-storage", daemon=True).start()
        try:
            good, answer = answers.get(timeout=self._seconds)
        except queue.Empty:
            raise TimeoutError(
                f"{self._name}: {what} took longer than {self._seconds:g} s"
            ) from None
        if not good:
            raise answer
        result: Result = answer
        return result
