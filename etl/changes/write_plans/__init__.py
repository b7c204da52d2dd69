"""Plan the steps that a sink takes: a planner is one module with a function `plan_steps`.

A sink names the planner that it takes. Rows that swap unique values are ordered by
`deletes_then_loads` within one session, and kept together by `unique_key_conflicts` among several.
"""

import importlib

from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings, WritePlanner

__all__ = ["WRITE_PLANS", "ChangeSet", "StageTimings", "WritePlanner", "planner_for"]

WRITE_PLANS = {
    "file_binlog": "file_binlog",
    "groups": "conflict_groups",
    "kafka_binlog": "kafka_binlog",
    "kafka_messages": "kafka_messages",
    "net": "deletes_then_loads",
    "newest": "latest_images",
}
"""The module of each planner."""


def planner_for(name: str) -> WritePlanner:
    """Return a planner's function by its name. Raises ValueError for an unknown name."""
    if name not in WRITE_PLANS:
        raise ValueError(f"there is no write planner {name!r}; known are {', '.join(WRITE_PLANS)}")
    planner: WritePlanner = importlib.import_module(f"{__name__}.{WRITE_PLANS[name]}").plan_steps
    return planner
