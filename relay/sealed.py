"""JSON records that tell when they were damaged.

The last member of a record, ``crc32c``, is the CRC-32C of the text before it closed with ``}``, so that one that was
cut short or edited is never taken for a good one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import google_crc32c

from relay.format_version import newer

__all__ = ["seal", "unseal"]

_TRAILER = re.compile(rb',"crc32c":(\d{1,10})\}\s*\Z')


def seal(record: Mapping[str, Any]) -> bytes:
    """The record, which has at least one member, as one line of text with its checksum."""
    body = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    return body[:-1] + b',"crc32c":%d}\n' % google_crc32c.value(body)


def unseal(data: bytes, version: int) -> dict[str, Any]:
    """The inverse of `seal`, without the member `format`, which must be `version`. Raises ValueError."""
    trailer = _TRAILER.search(data)
    if trailer is None:
        raise ValueError("the record doesn't end with its checksum: it is cut short or was edited")
    body = data[: trailer.start()] + b"}"
    if google_crc32c.value(body) != int(trailer.group(1)):
        raise ValueError("the record's checksum is wrong: it was damaged or edited")
    raw: dict[str, Any] = json.loads(body)
    found = raw.pop("format", None)
    if error := newer("the record", found, version):
        raise error
    if found != version:
        raise ValueError(f"the record has format {found}, this version of Sluice reads {version}")
    return raw
