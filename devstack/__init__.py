"""All that one machine needs: a stand-in TiDB cluster that replays recordings, and launchers.

The launchers start everything else. What each name needs is imported when it is first used: most
commands import this package, and few look at a stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.devstack.launch import LOOPBACK, PART_NAMES, PUMP_NAMES, airflow_url, password_file
    from sluice.devstack.progress_view import ProgressView
    from sluice.devstack.repository import REPOSITORY
    from sluice.devstack.stack import Stack
    from sluice.devstack.state import StackError

__all__ = [
    "LOOPBACK",
    "PART_NAMES",
    "PUMP_NAMES",
    "REPOSITORY",
    "ProgressView",
    "Stack",
    "StackError",
    "airflow_url",
    "password_file",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "LOOPBACK": "sluice.devstack.launch",
        "PART_NAMES": "sluice.devstack.launch",
        "PUMP_NAMES": "sluice.devstack.launch",
        "REPOSITORY": "sluice.devstack.repository",
        "Stack": "sluice.devstack.stack",
        "StackError": "sluice.devstack.state",
        "ProgressView": "sluice.devstack.progress_view",
        "airflow_url": "sluice.devstack.launch",
        "password_file": "sluice.devstack.launch",
    },
)
