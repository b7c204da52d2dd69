"""The lake: the archive's changes as typed Parquet, for people's queries. See docs/query-the-past.md."""

from etl.lake.writer import BUFFER_BYTES, LakeWriter, write_lake

__all__ = ["BUFFER_BYTES", "LakeWriter", "write_lake"]
