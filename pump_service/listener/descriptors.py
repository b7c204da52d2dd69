"""Limit the process's open files, and how many of them connections may take.

A connection that took the last descriptor would keep the value log from beginning its next segment.
So connections stop below the limit.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

_TARGET_NOFILE = 65_536
_RESERVED_DESCRIPTORS = 1024  # for store, LevelDB, own connections; half of a smaller limit


def raise_nofile_limit() -> int:
    """Raise the soft limit of open files up to the hard one, at most 65,536; return the result."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _TARGET_NOFILE if hard == resource.RLIM_INFINITY else min(_TARGET_NOFILE, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("can't raise the limit of open files, it stays at %d: %s", soft, error)
    return nofile_limit()


def nofile_limit() -> int:
    """Return the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _TARGET_NOFILE if soft == resource.RLIM_INFINITY else soft


def max_connection_descriptors() -> int:
    """Return how many descriptors all connections may take together."""
    return max(nofile_limit() - _RESERVED_DESCRIPTORS, nofile_limit() // 2)
