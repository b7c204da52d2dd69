"""The archive: what the relay log held, kept for good, and tables as of some moments."""

from relay.archive.base import Base, BaseFile, Bases, BaseTable, Making, base_id

__all__ = ["Base", "BaseFile", "BaseTable", "Bases", "Making", "base_id"]
