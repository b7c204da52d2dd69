"""Which kind of storage a URL names."""

from __future__ import annotations

from relay.storage._local import LocalStorage
from relay.storage.protocol import Storage
from relay.url import parse_url


def open_storage(url: str) -> Storage:
    """The store at a URL; a plain absolute path is a local directory. Raises RelayError for a URL nobody
    understands.
    """
    place = parse_url(url)
    if place.directory is not None:
        return LocalStorage(place.directory, url)
    # obstore is loaded only where it is used: not in every one of Spark's workers
    from relay.storage._object_store import open_object_storage

    return open_object_storage(place, url)
