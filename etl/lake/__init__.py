"""The lake: the archive's changes as typed Parquet, for people's queries. See docs/query-the-past.md."""

from etl.lake.live import live_files, remove_superseded
from etl.lake.writer import BUFFER_BYTES, LakeWriter, write_lake

__all__ = ["BUFFER_BYTES", "LakeWriter", "live_files", "remove_superseded", "write_lake"]
