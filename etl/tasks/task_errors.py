"""Airflow's handling of errors of our tasks: the DAG files' common default arguments.

Imports neither Airflow nor us, since DAG files are parsed all the time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sluice.errors import SluiceError

__all__ = ["TASK_ERRORS", "say_hint"]


def say_hint(context: Mapping[str, Any]) -> None:
    """Log the error's hint as the last line of a failed task; Airflow calls it after all else."""
    error = context.get("exception")
    if isinstance(error, SluiceError) and error.hint:
        logging.getLogger("sluice").error("hint: %s", error.hint)


TASK_ERRORS: dict[str, Any] = {
    "retries": 1_000,  # of killed tasks; what passes is waited for inside of them
    "retry_delay": timedelta(seconds=1),
    "max_retry_delay": timedelta(seconds=30),
    "on_failure_callback": say_hint,
}
"""`default_args` of a DAG."""
