"""How many files the process may open, and how many of them connections may take.

A connection that took the last descriptor would stop the value log from beginning its next segment, so connections end
below the limit.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

_WANTED = 65_536
_OWN = 1024  # of the store, LevelDB, and the pump's own connections; of a small limit half


def raise_limit() -> int:
    """Raise the soft limit of open files as far as the hard one allows, at most to 65,536; returns what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", soft, error)
    return limit()


def limit() -> int:
    """The soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def for_connections() -> int:
    """Descriptors that connections may take together."""
    return max(limit() - _OWN, limit() // 2)
