"""Bases: all tables as of one moment, in the archive."""

from etl.base.errors import BaseError

__all__ = ["BaseError"]
