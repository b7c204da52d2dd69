"""Execute DDL jobs downstream, once each, and reconcile their tables with the upstream's."""

from sluice.etl.downstream.ddl._detect_executed import (
    executed_prefix,
    first_already_converted,
    first_not_replayable,
)
from sluice.etl.downstream.ddl._generate import column_type, create_table
from sluice.etl.downstream.ddl._narrowed import narrowed_statements
from sluice.etl.downstream.ddl._table_adjustments import (
    drop_uniqueness,
    hold_as_bytes,
    repair_blank_ends,
)
from sluice.etl.downstream.ddl.executor import ALREADY_EXISTS, DdlError, DdlExecutor

__all__ = [
    "ALREADY_EXISTS",
    "DdlError",
    "DdlExecutor",
    "column_type",
    "create_table",
    "drop_uniqueness",
    "executed_prefix",
    "first_already_converted",
    "first_not_replayable",
    "hold_as_bytes",
    "narrowed_statements",
    "repair_blank_ends",
]
