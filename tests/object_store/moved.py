"""What a relay log or an archive has in a folder is in an S3 server instead, see
`tests.object_store.everywhere`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

VARIABLE = "SLUICE_TEST_FOLDERS_ARE_IN"
"""The environment's: the URL, with FOLDER where a folder's path is to be."""
DIRECTLY = "SLUICE_TEST_FOLDERS_ARE_DIRECTLY_IN"
"""The same without faults."""
LISTS_LAG = "SLUICE_TEST_LISTS_LAG"
"""The environment's: not empty if lists lag. Otherwise it is a store as Amazon's is."""
_METHODS = (
    "new_file",
    "new_whole_file",
    "new_temp_file",
    "create",
    "replace",
    "read",
    "open",
    "names",
    "sizes",
    "remove",
    "remove_empty_directory",
    "sweep",
)


def url_of(folder: Path, pattern: str = "") -> str:
    """Where what would be in a folder is; `pattern` in place of the environment's."""
    return (pattern or os.environ[VARIABLE]).replace("FOLDER", str(folder).strip("/"))


def move(local: Any) -> None:
    """`local` is LocalStorage, which does from now on what ObjectStorage does.

    But for folders that hold something, and nothing of which is in the server, such as a dump.
    """
    plain = {name: getattr(local, name) for name in _METHODS}

    def place(storage: Any) -> Any:
        if "_elsewhere" not in storage.__dict__:
            from sluice.relay.storage._open import open_storage

            root = storage._root
            there = root.is_dir() and any(root.iterdir())
            if there and open_storage(url_of(root, os.environ[DIRECTLY])).names(""):
                there = False  # a test keeps something of its own beside what is in the server
            storage._elsewhere = None if there else open_storage(url_of(root))
        return storage._elsewhere

    def moved(name: str) -> Any:
        def call(storage: Any, *args: Any) -> Any:
            elsewhere = place(storage)
            return (
                plain[name](storage, *args)
                if elsewhere is None
                else getattr(elsewhere, name)(*args)
            )

        return call

    for name in _METHODS:
        setattr(local, name, moved(name))
    lag = bool(os.environ.get(LISTS_LAG))
    local.is_remote = property(lambda storage: place(storage) is not None)
    local.lists_may_lag = property(lambda storage: lag and place(storage) is not None)
