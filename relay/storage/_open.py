"""Open the kind of storage that a URL names."""

from __future__ import annotations

import json
import os

from sluice.relay.storage._local import LocalStorage
from sluice.relay.storage.credentials import credentials_for
from sluice.relay.storage.protocol import Storage
from sluice.relay.url import parse_url

_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_", "SERVICE_ACCOUNT")
_open_stores: dict[tuple[object, ...], Storage] = {}


def open_storage(url: str) -> Storage:
    """Open the storage at a URL; a plain absolute path is a local directory.

    A process has one of each object store, and keeps its connections. Raises RelayError for an
    unknown kind of URL.
    """
    place = parse_url(url)
    if place.directory is not None:
        return LocalStorage(place.directory, url)
    # obstore is loaded only where it is used: not in every one of Spark's workers
    from sluice.relay.storage._object_store import open_object_storage

    environment = tuple(
        sorted(item for item in os.environ.items() if item[0].startswith(_CREDENTIALS))
    )
    found = credentials_for(place.store)
    given = json.dumps([found.options, found.aws], sort_keys=True) if found else ""
    key = os.getpid(), url, hash(environment), hash(given)
    if key not in _open_stores:
        _open_stores[key] = open_object_storage(place, url, found)
    return _open_stores[key]
