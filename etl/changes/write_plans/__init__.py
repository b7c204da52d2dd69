"""What changes look like when a sink gets them. A shape is one module with a function `steps`; a sink names the one it
takes.
"""

import importlib

from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings, WritePlanner

__all__ = ["WRITE_PLANS", "ChangeSet", "StageTimings", "WritePlanner", "planner_for"]

WRITE_PLANS = {
    "file_binlog": "file_binlog",
    "groups": "conflict_groups",
    "kafka_binlog": "kafka_binlog",
    "net": "net_changes",
    "newest": "latest_images",
}
"""The module of each shape."""


def planner_for(name: str) -> WritePlanner:
    """The shape's function. Raises ValueError for a name that is none."""
    if name not in WRITE_PLANS:
        raise ValueError(f"there is no shape {name!r}; known are {', '.join(WRITE_PLANS)}")
    shape: WritePlanner = importlib.import_module(f"{__name__}.{WRITE_PLANS[name]}").plan_steps
    return shape
