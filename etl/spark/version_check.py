"""Check that a worker has the client's Python, Sluice and minor pyspark, and what they need.

The check runs once in each worker process, before anything of the job is imported, so the error
names the host and the difference, and isn't an ImportError somewhere.
"""

from __future__ import annotations

import importlib.metadata
import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.errors import RequestError
from sluice.etl.spark.errors import report_to_client
from sluice.etl.spark.shipping import fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

_SAME_VERSION = ("pyspark",)
_SAME_MAJOR = ("pyarrow", "protobuf", "numpy")
_REQUIRED_PACKAGES = ("cattrs", "google-crc32c", "grpcio", "obstore", "pymysql", "zstandard")

_OTHER_SLUICE = re.compile(r"doesn't fit: it has Sluice \w+ in place of \w+(?![\w,])")
"""As `check` writes it, wherever Spark's text goes on behind it."""

Versions = Mapping[str, str]
"""Versions by name; "" for what isn't installed."""


class WorkerVersionMismatch(RequestError):
    """A worker has other versions than the client, or lacks something; names its host."""

    hint = (
        "give Spark's workers the same Python and packages as Airflow's: the same image, or a"
        " packed environment in [spark] environment (docs/how-to/spark-on-a-cluster.md)"
    )


def versions() -> dict[str, str]:
    """Return this process's versions."""
    found = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in (*_SAME_VERSION, *_SAME_MAJOR, *_REQUIRED_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    if not found["pyspark"]:  # an image of Spark has it in its own folder, without metadata
        found["pyspark"] = _pyspark()
    return found | {"Sluice": fingerprint()}


def _pyspark() -> str:
    try:
        from pyspark.version import __version__
    except ImportError:
        return ""
    return str(__version__)


def mismatches(here: Versions, wanted: Versions) -> list[str]:
    """Describe the differences in a few words: `here` is the worker's, `wanted` the client's."""
    return [
        f"{name} {here[name]} in place of {want}" if here.get(name) else f"no {name}"
        for name, want in wanted.items()
        if want and not _version_fits(name, here.get(name, ""), want)
    ]


def _version_fits(name: str, here: str, want: str) -> bool:
    if name in _REQUIRED_PACKAGES:
        return bool(here)
    if name in _SAME_MAJOR:
        return here.partition(".")[0] == want.partition(".")[0]
    if name in _SAME_VERSION:  # patches and vendors' builds of a minor version have its protocol
        return _minor(here) == _minor(want)
    return here == want


def _minor(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]


_checked_versions: set[tuple[tuple[str, str], ...]] = set()
"""The clients' versions that this worker process was found to fit."""


def check(wanted: Versions) -> None:
    """Check this worker's versions. Raises WorkerVersionMismatch."""
    key = tuple(wanted.items())
    if key in _checked_versions:
        return
    if found := mismatches(versions(), wanted):
        raise WorkerVersionMismatch(
            f"the Spark worker on {socket.gethostname()} doesn't fit: it has {', '.join(found)}"
        )
    _checked_versions.add(key)


def is_other_sluice(text: str) -> bool:
    """Return whether the text of a WorkerVersionMismatch names Sluice alone, and no package."""
    return _OTHER_SLUICE.search(text) is not None


@dataclass(frozen=True, slots=True)
class VersionChecked:
    """A job's function, still pickled: a wrong worker raises before it imports anything of it."""

    wanted: dict[str, str]
    function: bytes

    @classmethod
    def wrap(cls, function: Callable[..., Any]) -> VersionChecked:
        """Wrap a function for workers like this process."""
        from pyspark import cloudpickle

        return cls(versions(), cloudpickle.dumps(function))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with report_to_client():
            check(self.wanted)
        yield from pickle.loads(self.function)(batches)  # noqa: S301 (what this class pickled)
