"""How many files the process may open, and how many of them connections may take.

A connection that took the last descriptor would stop the value log from beginning its next segment, so connections end
below the limit.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

_TARGET_NOFILE = 65_536
_RESERVED_DESCRIPTORS = 1024  # of the store, LevelDB, and the pump's own connections; of a small limit half


def raise_nofile_limit() -> int:
    """Raise the soft limit of open files as far as the hard one allows, at most to 65,536; returns what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _TARGET_NOFILE if hard == resource.RLIM_INFINITY else min(_TARGET_NOFILE, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", soft, error)
    return nofile_limit()


def nofile_limit() -> int:
    """The soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _TARGET_NOFILE if soft == resource.RLIM_INFINITY else soft


def max_connection_descriptors() -> int:
    """Descriptors that connections may take together."""
    return max(nofile_limit() - _RESERVED_DESCRIPTORS, nofile_limit() // 2)
