"""The lake: the archive's changes as typed Parquet, for people's queries. See docs/query-the-past.md."""

from etl.lake.live import live_files
from etl.lake.merge import merge_lake, remove_merged
from etl.lake.writer import BUFFER_BYTES, LakeWriter, write_lake

__all__ = ["BUFFER_BYTES", "LakeWriter", "live_files", "merge_lake", "remove_merged", "write_lake"]
