"""Credentials for object stores, of this process: by bucket, and never in a URL.

Without any here a store takes them from the environment, or from the machine's role, as obstore
does by itself. A caller with others registers them with `register_provider`, before the store is
opened; the provider is called when the first store is. `StoreCredentials` go to Spark's workers
inside of the function that they run (`sluice.etl.spark.remote_workers`), which no setting, plan
or page shows.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

__all__ = ["StoreCredentials", "credentials_for", "known_credentials", "register_provider"]


class StoreCredentials:
    """Settings of obstore's for a store, by their names there.

    `aws`: how a session of AWS's gets credentials, see `_aws_session.aws_provider`; empty for
    credentials that are in the settings. Neither shown nor compared by what they are.
    """

    def __init__(self, options: Mapping[str, str], aws: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options)
        self.aws = dict(aws or {})

    def __repr__(self) -> str:
        return f"Credentials({', '.join(sorted(self.options | self.aws))})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Encode them, so that a log that shows the bytes of a pickle shows no plain secret.

        It is no encryption.
        """
        both = json.dumps([self.options, self.aws]).encode()
        return _unpacked, (base64.b85encode(zlib.compress(both)),)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Unpack what a pickle holds."""
        return cls(*json.loads(zlib.decompress(base64.b85decode(packed))))


def _unpacked(packed: bytes) -> StoreCredentials:
    return StoreCredentials.unpack(packed)


_providers: dict[str, Callable[[], StoreCredentials]] = {}
_cached: dict[str, StoreCredentials] = {}


def register_provider(url: str, provider: Callable[[], StoreCredentials]) -> None:
    """Register the function that returns credentials of the bucket in which `url` is.

    What it raises is raised where a store is opened.
    """
    bucket = _bucket(url)
    _providers[bucket] = provider
    _cached.pop(bucket, None)


def credentials_for(url: str) -> StoreCredentials | None:
    """Return the credentials for the bucket of `url`.

    None: the environment has them, or the machine's role.
    """
    bucket = _bucket(url)
    if bucket in _providers and bucket not in _cached:
        _cached[bucket] = _providers[bucket]()
    return _cached.get(bucket)


def known_credentials() -> dict[str, StoreCredentials]:
    """Return credentials by a URL of their bucket: those asked for, or that can be."""
    return {
        bucket: found for bucket in _providers if (found := credentials_for(bucket)) is not None
    }


def _bucket(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
