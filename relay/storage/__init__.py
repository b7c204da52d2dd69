"""Where the relay log's files are: a local directory, or an object store."""

from relay.storage._local import LocalStorage
from relay.storage._open import open_storage
from relay.storage.credentials import Credentials
from relay.storage.protocol import Sink, Storage
from relay.storage.seekable import SeekableFile

__all__ = ["Credentials", "LocalStorage", "SeekableFile", "Sink", "Storage", "open_storage"]
