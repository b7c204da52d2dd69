"""The archive: what the relay log held, kept for good, and tables as of some moments."""

from relay.archive.base import Base, BaseFile, Bases, BaseTable, Making, base_id
from relay.archive.holds import Floor, Hold, Holds, RemovedError

__all__ = [
    "Base",
    "BaseFile",
    "BaseTable",
    "Bases",
    "Floor",
    "Hold",
    "Holds",
    "Making",
    "RemovedError",
    "base_id",
]
