"""Lists that lag, as those of stores that aren't consistent: they answer as the store was some
seconds before.
"""

from __future__ import annotations

import re
import threading
import time
from urllib.parse import parse_qs, unquote, urlsplit

_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_PREFIXES = re.compile(rb"<CommonPrefixes>.*?</CommonPrefixes>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_PREFIX = re.compile(rb"<Prefix>(.*?)</Prefix>", re.DOTALL)
_GONE = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>&quot;0&quot;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


class Listed:
    """What was created and removed, and when."""

    def __init__(self) -> None:
        self._created: dict[str, float] = {}
        self._removed: dict[str, float] = {}
        self._lock = threading.Lock()

    def note(self, what: str, path: str) -> None:
        """A request has been answered well."""
        url = urlsplit(path)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        if not key or "partNumber=" in url.query:
            return
        with self._lock:
            now = time.monotonic()
            if what == "PUT":
                if self._removed.pop(key, None) is not None or key not in self._created:
                    self._created[key] = now
            elif what == "DELETE":
                self._removed[key] = now
                self._created.pop(key, None)

    def age(self, seconds: float) -> None:
        """What has happened so far happened so many seconds before."""
        with self._lock:
            self._created = {key: at - seconds for key, at in self._created.items()}
            self._removed = {key: at - seconds for key, at in self._removed.items()}

    def older(self, path: str, body: bytes, seconds: float) -> bytes:
        """The answer to a list as it was so many seconds before."""
        since = time.monotonic() - seconds
        query = parse_qs(urlsplit(path).query)
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        with self._lock:
            young = {key for key, at in self._created.items() if at > since}
            old = {key for key, at in self._created.items() if at <= since}
            gone = [
                key for key, at in self._removed.items() if at > since and key.startswith(prefix)
            ]
        body = _CONTENTS.sub(
            lambda found: b"" if _text(_KEY, found[0]) in young else found[0], body
        )

        def is_old(folder: str) -> bool:
            return any(key.startswith(folder) for key in old) or not any(
                key.startswith(folder) for key in young
            )

        body = _PREFIXES.sub(
            lambda found: found[0] if is_old(_text(_PREFIX, found[0])) else b"", body
        )
        again = "".join(
            _GONE.format(key=key)
            for key in sorted(gone)
            if not (delimiter and delimiter in key[len(prefix) :])
        )
        at = body.rfind(b"</ListBucketResult>")
        return body[:at] + again.encode() + body[at:]


def _text(pattern: re.Pattern[bytes], found: bytes) -> str:
    match = pattern.search(found)
    return match[1].decode() if match else ""
