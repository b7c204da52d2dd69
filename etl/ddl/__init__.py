"""DDL jobs executed downstream."""

from etl.ddl._blank_ends import mend_blank_ends
from etl.ddl._generate import column_type, create_table
from etl.ddl._ran import converted_already, how_many_ran, not_replayable
from etl.ddl._relax import relax
from etl.ddl._text_as_bytes import hold_as_bytes
from etl.ddl.executor import DdlExecutor
from etl.ddl.told import THERE_ALREADY, DdlError

__all__ = [
    "THERE_ALREADY",
    "DdlError",
    "DdlExecutor",
    "column_type",
    "converted_already",
    "create_table",
    "hold_as_bytes",
    "how_many_ran",
    "mend_blank_ends",
    "not_replayable",
    "relax",
]
