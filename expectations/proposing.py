"""First suites for the tables that there are, written where nobody has edited one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from etl.settings import Settings
from expectations.errors import QualityError
from expectations.propose import propose, propose_for_replication
from expectations.server_place import downstream_place
from expectations.suite import Suite
from expectations.suite_files import SuiteFolder, Written
from upstream.table_name import fits

__all__ = ["propose_suites"]

Say = Callable[[Suite, Path, Written], None]


def propose_suites(settings: Settings, globs: Sequence[str], say: Say, *, over_edited: bool = False) -> None:
    """Propose suites for the downstream's tables that have such names (``schema.table``, also with * and ?; all without
    any), as they are at its checkpoint, and for the replication. Raises QualityError, DownstreamError, OSError.
    """
    folder = SuiteFolder(Path(settings.quality.suites))
    with downstream_place(settings) as place:
        tables = frozenset(place.tables())
        chosen = sorted(name for name in tables if not globs or any(fits(name, glob) for glob in globs))
        if not chosen:
            raise QualityError(f"there is no such table downstream: {', '.join(globs) or 'it is empty'}")
        for name in chosen:
            _write(folder, propose(place, name, tables), say, over_edited=over_edited)
    if not globs:
        _write(folder, propose_for_replication(), say, over_edited=over_edited)


def _write(folder: SuiteFolder, suite: Suite, say: Say, *, over_edited: bool) -> None:
    say(suite, folder.path(suite.name), folder.write(suite, over_edited=over_edited))
