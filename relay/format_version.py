"""The format of a relay log, an archive and their documents.

An older Sluice refuses what a newer one wrote before it changes anything.

A document has its format in its member ``format``; without it, it is 1. A release that changes a
document's meaning writes a higher number. A release that changes anything else, such as which files
there are, puts

    <url>/format.json      {"format": 2, "by": "sluice 1.0"}

at the root of the relay log or the archive, before it writes there. Without the file all of it has
format 1.
"""

from __future__ import annotations

import json
from typing import Any

from sluice.relay.errors import RelayError
from sluice.relay.storage import Storage

__all__ = [
    "FORMAT",
    "FORMAT_FILE",
    "NewerFormatError",
    "newer_format_error",
    "parse_json",
    "refuse_newer",
]

FORMAT = 1
"""The newest that this version reads, and the one it writes."""
FORMAT_FILE = "format.json"


class NewerFormatError(RelayError):
    """A newer version of Sluice wrote this. Nothing was changed."""

    hint = (
        "install the version that wrote it, or a newer one, wherever Sluice runs: Airflow's tasks,"
        " Spark's workers, the command"
    )
    found = 0
    """The format that the file has."""

    def at(self, where: str) -> NewerFormatError:
        """Return the same error with the name of the file in front."""
        error = NewerFormatError(f"{where}: {self.args[0]}", hint=self.hint)
        error.found = self.found
        return error


def newer_format_error(what: str, found: object, reads: int = FORMAT) -> NewerFormatError | None:
    """Return the error for `what` of format `found` if this version can't read that, or None.

    It reads formats through `reads`.
    """
    if type(found) is not int or found <= reads:
        return None
    error = NewerFormatError(
        f"{what} has format {found}, this version of Sluice reads {reads}: a newer version"
        " wrote it",
        hint=NewerFormatError.hint,
    )
    error.found = found
    return error


def parse_json(data: bytes, what: str) -> Any:
    """Parse a JSON document, and remove its ``format``.

    `what`: for messages. Raises NewerFormatError, ValueError.
    """
    raw = json.loads(data)
    if isinstance(raw, dict) and (error := newer_format_error(what, raw.get("format"))):
        raise error
    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        del raw["format"]
    return raw


def refuse_newer(storage: Storage, what: str) -> None:
    """Check that the relay log or archive in `storage` has no newer format.

    Raises NewerFormatError if it has, RelayError if its mark can't be read, OSError.
    """
    try:
        parse_json(storage.read(FORMAT_FILE), f"{what} {storage.url}")
    except FileNotFoundError:
        return
    except ValueError as error:
        raise RelayError(
            f"{storage.url}/{FORMAT_FILE}: {error}: it names the format of the files there",
            hint="restore the file from a copy",
        ) from None
