"""Fetch jars for tests from Maven Central: those of a list, each with its SHA-256.

A line of a list is the SHA-256 and the path in the repository, as `sha256sum` prints them.
MAVEN_CENTRAL=URL is another repository.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAVEN_CENTRAL = os.environ.get("MAVEN_CENTRAL", "https://repo1.maven.org/maven2")


class NotAvailableError(Exception):
    """What a test wants to run can't be had on this machine; the text has the reason."""


def fetch_jars(listed: Path, folder: Path) -> Path:
    """Return the folder with all jars of a list, after fetching those that are missing.

    Raises NotAvailableError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = [line.split() for line in listed.read_text(encoding="utf-8").splitlines()]
    missing = [(checksum, path) for checksum, path in entries if not _local(folder, path).exists()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda entry: fetch(folder, *entry), missing))
    wanted = {_local(folder, path) for _, path in entries}
    for other in set(folder.glob("*.jar")) - wanted:
        other.unlink()  # of another version of the list: all jars are on the class path
    return folder


def _local(folder: Path, path: str) -> Path:
    return folder / path.rpartition("/")[2]


def fetch(folder: Path, checksum: str, path: str) -> None:
    """Fetch one file into a folder. Raises NotAvailableError."""
    url = f"{MAVEN_CENTRAL}/{path}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            content = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise NotAvailableError(f"{url}: {error}") from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise NotAvailableError(f"{url}: its SHA-256 is not the listed {checksum}")
    temporary = _local(folder, path).with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.rename(_local(folder, path))
