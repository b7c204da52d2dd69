"""JSON records that show whether they were damaged.

The last member of a record, ``crc32c``, is the CRC-32C of the text before it closed with ``}``, so
a record that was cut short or edited is never taken for a good one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import google_crc32c

from sluice.relay.format_version import newer_format_error
from sluice.relay.json_cache import JsonMemberCache, to_text

__all__ = ["decode_checksummed", "decode_text", "encode_checksummed", "encode_text"]

_TRAILER = re.compile(rb',"crc32c":(\d{1,10})\}\s*\Z')
_TRAILER_START = b',"crc32c":'


def encode_checksummed(
    record: Mapping[str, Any], known: Mapping[str, JsonMemberCache] | None = None
) -> bytes:
    """Return a record, which has at least one member, as one line of text with its checksum.

    `known`: for members that are objects with ids for names, a cache of their text.
    """
    if not known:
        return encode_text(to_text(record))
    # Put together once: a record may have thousands of tables, and every copy of MiBs costs as much
    # as finding them.
    pieces = ["{"]
    for name, value in record.items():
        pieces.append(f"{to_text(name)}:")
        pieces += known[name].pieces(value) if name in known else (to_text(value),)
        pieces.append(",")
    pieces[-1] = "}"
    return encode_text("".join(pieces))


def encode_text(text: str) -> bytes:
    """Append the checksum to the text of an object with at least one member."""
    body = text.encode()
    return b"".join((memoryview(body)[:-1], b',"crc32c":%d}\n' % google_crc32c.value(body)))


def decode_text(data: bytes) -> str:
    """Return the text without its checksum. Raises ValueError if the checksum is wrong."""
    return _strip_checksum(data) + "}"


def decode_checksummed(
    data: bytes, version: int, known: tuple[str, JsonMemberCache] | None = None
) -> dict[str, Any]:
    """Parse what `encode_checksummed` wrote, without `format`, which is `version` at most.

    Raises ValueError. `known`: a member that is an object with ids for names, and its cache.
    """
    text = _strip_checksum(data)
    raw = (_read(text, *known) if known is not None else None) or json.loads(text + "}")
    found = raw.pop("format", None)
    if error := newer_format_error("the record", found, version):
        raise error
    if found not in range(1, version + 1):
        raise ValueError(f"the record has format {found}, this version of Sluice reads {version}")
    return raw


def _strip_checksum(data: bytes) -> str:
    """Return the text before the checksum, which lacks its last brace. Raises ValueError."""
    at = data.rfind(_TRAILER_START)  # a pattern would be looked for from the text's beginning
    trailer = _TRAILER.match(data, at) if at >= 0 else None
    if trailer is None:
        raise ValueError("the record doesn't end with its checksum: it is cut short or was edited")
    body = data[:at]
    if google_crc32c.extend(google_crc32c.value(body), b"}") != int(trailer.group(1)):
        raise ValueError("the record's checksum is wrong: it was damaged or edited")
    return body.decode()


def _read(text: str, name: str, known: JsonMemberCache) -> dict[str, Any] | None:
    """Parse a record, without its last brace, whose member `name` stands between others.

    None if it isn't written as `encode_checksummed` does it.
    """
    opening = f',"{name}":{{'
    at = text.find(opening)
    if at < 0:
        return None
    try:
        before = json.loads(text[:at] + "}")  # no object when the member is one of another member
        value, end = known.read(text, at + len(opening))
        if end < len(text) and not text.startswith(',"', end):
            return None
        after = json.loads("{" + text[end + 1 :] + "}")
    except (ValueError, IndexError):
        return None
    return None if name in before or name in after else {**before, name: value, **after}
