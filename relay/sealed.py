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
from relay.known_members import KnownMembers, to_text

__all__ = ["seal", "seal_text", "unseal", "unseal_text"]

_TRAILER = re.compile(rb',"crc32c":(\d{1,10})\}\s*\Z')


def seal(record: Mapping[str, Any], known: Mapping[str, KnownMembers] | None = None) -> bytes:
    """The record, which has at least one member, as one line of text with its checksum. `known`: of members that are
    objects with ids for names, what was written of them before.
    """
    if known:
        members = (
            f"{to_text(name)}:{known[name].write(value) if name in known else to_text(value)}"
            for name, value in record.items()
        )
        body = f"{{{','.join(members)}}}".encode()
    else:
        body = to_text(record).encode()
    return _sealed(body)


def seal_text(text: str) -> bytes:
    """The text of an object with at least one member, with its checksum for a last one."""
    return _sealed(text.encode())


def _sealed(body: bytes) -> bytes:
    return body[:-1] + b',"crc32c":%d}\n' % google_crc32c.value(body)


def unseal_text(data: bytes) -> str:
    """The inverse of `seal_text`. Raises ValueError."""
    trailer = _TRAILER.search(data)
    if trailer is None:
        raise ValueError("the record doesn't end with its checksum: it is cut short or was edited")
    body = data[: trailer.start()] + b"}"
    if google_crc32c.value(body) != int(trailer.group(1)):
        raise ValueError("the record's checksum is wrong: it was damaged or edited")
    return body.decode()


def unseal(data: bytes, version: int, known: tuple[str, KnownMembers] | None = None) -> dict[str, Any]:
    """The inverse of `seal`, without the member `format`, which must be `version`. Raises ValueError. `known`: a member
    that is an object with ids for names, and what was read of it before.
    """
    body = unseal_text(data)
    raw = (_read(body, *known) if known is not None else None) or json.loads(body)
    found = raw.pop("format", None)
    if error := newer("the record", found, version):
        raise error
    if found != version:
        raise ValueError(f"the record has format {found}, this version of Sluice reads {version}")
    return raw


def _read(body: str, name: str, known: KnownMembers) -> dict[str, Any] | None:
    """A record whose member `name` stands between others; None if it isn't written as `seal` does it."""
    opening = f',"{name}":{{'
    head, found, _ = body.partition(opening)
    if not found:
        return None
    try:
        before = json.loads(head + "}")  # no object when the member is one of another member
        value, end = known.read(body, len(head) + len(opening))
        if not body.startswith((",", "}"), end):
            return None
        after = json.loads("{" + body[end:].removeprefix(","))
    except (ValueError, IndexError):
        return None
    return None if name in before or name in after else {**before, name: value, **after}
