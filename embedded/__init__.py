"""All that one machine needs: a stand-in TiDB cluster that replays recordings, and launchers for everything else."""

from __future__ import annotations

from embedded.launch import LOOPBACK, PART_NAMES, PUMP_NAMES, airflow_url, password_file
from embedded.repository import REPOSITORY
from embedded.stack import Stack
from embedded.state import StackError
from embedded.view import View

__all__ = [
    "LOOPBACK",
    "PART_NAMES",
    "PUMP_NAMES",
    "REPOSITORY",
    "Stack",
    "StackError",
    "View",
    "airflow_url",
    "password_file",
]
