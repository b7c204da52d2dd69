"""Storage of the relay log's files: a local directory, or an object store."""

from sluice.relay.storage._local import LocalStorage
from sluice.relay.storage._open import open_storage
from sluice.relay.storage.credentials import StoreCredentials
from sluice.relay.storage.protocol import ByteWriter, SeekableFile, Storage

__all__ = [
    "ByteWriter",
    "LocalStorage",
    "SeekableFile",
    "Storage",
    "StoreCredentials",
    "open_storage",
]
