"""Write first suites for the existing tables; edited files stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.etl.settings import Settings
from sluice.expectations.errors import QualityError
from sluice.expectations.propose import propose, propose_for_replication
from sluice.expectations.server_dataset import open_downstream_dataset
from sluice.expectations.suite import Suite
from sluice.expectations.suite_files import SuiteFolder, WriteResult
from sluice.tidb.table_name import fits

__all__ = ["propose_suites"]

OnSuiteWritten = Callable[[Suite, Path, WriteResult], None]


def propose_suites(
    settings: Settings, globs: Sequence[str], say: OnSuiteWritten, *, over_edited: bool = False
) -> None:
    """Propose suites for the downstream's tables at its checkpoint, and for the replication.

    `globs` select tables (``schema.table``, also with * and ?); all without any. Raises
    QualityError, DownstreamError, OSError.
    """
    folder = SuiteFolder(Path(settings.quality.suites))
    with open_downstream_dataset(settings) as place:
        tables = frozenset(place.tables())
        chosen = sorted(
            name for name in tables if not globs or any(fits(name, glob) for glob in globs)
        )
        if not chosen:
            raise QualityError(
                f"there is no such table downstream: {', '.join(globs) or 'it is empty'}"
            )
        for name in chosen:
            _write(folder, propose(place, name, tables), say, over_edited=over_edited)
    if not globs:
        _write(folder, propose_for_replication(), say, over_edited=over_edited)


def _write(folder: SuiteFolder, suite: Suite, say: OnSuiteWritten, *, over_edited: bool) -> None:
    say(suite, folder.path(suite.name), folder.write(suite, over_edited=over_edited))
