"""The archive: the past, in few large files with a manifest of their own.

    <archive>/days/<YYYY-MM-DD>/<number>.json        the volumes that begin on that UTC day: `relay.archive.catalogue`
    <archive>/log/<day>/<lo>-<hi>-<token>.parquet    a volume's row changes: `relay.row_groups`
    <archive>/log/<day>/<lo>-<hi>-<token>.windows    a volume's windows: `relay.archive.index`
    <archive>/lake/…                                 the same changes as typed columns
    <archive>/bases/…                                all tables as of one TSO
    <archive>/decisions/<commit_ts>.json             what operators decided about transactions and DDL inside;
    <archive>/pipelines/<name>/decisions/…           of the others of several pipelines: `relay.places`

A volume is a range `(lo, hi]` of whole windows and never changes; each begins where the one before it ends.
"""

from relay.archive.archive import Archive
from relay.archive.archive_log import ArchiveLog
from relay.archive.base import Base, BaseFile, Bases, BaseTable, Making, base_id
from relay.archive.coalesce import tables_at
from relay.archive.collecting import collect, living_holds
from relay.archive.decided import carry_decisions
from relay.archive.errors import ArchiveConflictError
from relay.archive.holds import DEAD_AFTER_MS, Floor, Hold, Holds, RemovedError
from relay.archive.index import Indexes
from relay.archive.log_writer import LogWritten, write_log
from relay.archive.volume import ArchiveFile, LakeFile, Volume, day_of

__all__ = [
    "DEAD_AFTER_MS",
    "Archive",
    "ArchiveConflictError",
    "ArchiveFile",
    "ArchiveLog",
    "Base",
    "BaseFile",
    "BaseTable",
    "Bases",
    "Floor",
    "Hold",
    "Holds",
    "Indexes",
    "LakeFile",
    "LogWritten",
    "Making",
    "RemovedError",
    "Volume",
    "base_id",
    "carry_decisions",
    "collect",
    "day_of",
    "living_holds",
    "tables_at",
    "write_log",
]
