"""Build the archive of Sluice's modules that Spark's workers import from.

With it they need neither an installation of Sluice nor a disk that they share with the client. It
holds the packages that a job's function may import, and nothing that is compiled for a machine:
what they need from others (pyarrow, numpy, protobuf, …) is on the workers already, or comes as
``[spark] environment``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable

PACKAGES = ("errors.py", "etl", "relay", "tidb")
"""The parts of the package `sluice` that workers get."""
_DATE = (2020, 1, 1, 0, 0, 0)  # the same content gives the same archive
_HASH_CHARS = 16


@functools.cache
def fingerprint() -> str:
    """Return a hash of Sluice's sources, as they are imported in this process."""
    found = hashlib.sha256()
    for name, source in module_sources():
        found.update(f"{name} {len(source)}\n".encode())
        found.update(source)
    return found.hexdigest()[:_HASH_CHARS]


@functools.cache
def module_sources() -> tuple[tuple[str, bytes], ...]:
    """Return the modules by their path below the packages' folder, in order.

    As they were when this process asked first, so that an upgrade meanwhile doesn't mix two
    versions.
    """
    package = importlib.resources.files("sluice")
    return tuple(
        found
        for name in ("__init__.py", *PACKAGES)
        for found in _below(f"sluice/{name}", package / name)
    )


def _below(path: str, entry: Traversable) -> Iterator[tuple[str, bytes]]:
    if entry.name.endswith(".py"):
        yield path, entry.read_bytes()
    elif entry.name != "__pycache__" and entry.is_dir():
        for each in sorted(entry.iterdir(), key=lambda each: each.name):
            yield from _below(f"{path}/{each.name}", each)


def build_zip() -> bytes:
    """Return the modules as a zip archive that Python imports from, about 1 MB.

    They are compiled, too: from a zip archive each worker process would compile them again. A
    worker with another Python takes the sources.
    """
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as file:
        for name, source in module_sources():
            file.writestr(zipfile.ZipInfo(name, _DATE), source, zipfile.ZIP_DEFLATED)
            file.writestr(
                zipfile.ZipInfo(f"{name}c", _DATE), _compiled(name, source), zipfile.ZIP_DEFLATED
            )
    return written.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """Return a .pyc that isn't compared with its source (PEP 552)."""
    code = compile(source, f"<sluice>/{name}", "exec", dont_inherit=True)
    unchecked = (1).to_bytes(4, "little")
    return (
        importlib.util.MAGIC_NUMBER
        + unchecked
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )
