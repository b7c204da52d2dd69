"""All that one machine needs: a stand-in TiDB cluster that replays recordings, and launchers for everything else.

What each name needs is imported when it is first used: most commands come through this door, and few look at a stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.first_use import on_first_use

if TYPE_CHECKING:
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

__getattr__ = on_first_use(
    __name__,
    {
        "LOOPBACK": "embedded.launch",
        "PART_NAMES": "embedded.launch",
        "PUMP_NAMES": "embedded.launch",
        "REPOSITORY": "embedded.repository",
        "Stack": "embedded.stack",
        "StackError": "embedded.state",
        "View": "embedded.view",
        "airflow_url": "embedded.launch",
        "password_file": "embedded.launch",
    },
)
