"""Landed windows become steps. Runs in Spark's workers."""

from etl.prepare._windows import (
    STEP_SCHEMA,
    PrepareOptions,
    began_before,
    counting_from,
    describe_window,
    prepare,
    prepare_steps,
)

__all__ = [
    "STEP_SCHEMA",
    "PrepareOptions",
    "began_before",
    "counting_from",
    "describe_window",
    "prepare",
    "prepare_steps",
]
