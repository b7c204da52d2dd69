"""Write the lake: the archive's changes as typed Parquet, for people's queries.

See docs/how-to/query-the-past.md.
"""

from sluice.etl.history.lake._rows import LakeLayout
from sluice.etl.history.lake._types import LakeColumn, lake_columns
from sluice.etl.history.lake.live import live_files, remove_superseded
from sluice.etl.history.lake.writer import BUFFER_BYTES, LakeWriter, write_lake

__all__ = [
    "BUFFER_BYTES",
    "LakeColumn",
    "LakeLayout",
    "LakeWriter",
    "lake_columns",
    "live_files",
    "remove_superseded",
    "write_lake",
]
