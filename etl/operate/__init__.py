"""What operators ask of a running pipeline, and what they are shown.

`handover` and `takeover_check` are modules of their own: they need much that the other commands don't.
"""

from etl.operate.commands import (
    APPLY,
    AS_SET,
    BOTH,
    LAND,
    OperateError,
    accept,
    for_run,
    identity,
    pause,
    paused_dag,
    remove_decision,
    replace_ddl,
    resume,
    run_until,
    skip_ddl,
    skip_transaction,
    stopped_dags,
)
from etl.operate.form import ACTIONS, Form, act, order_job
from etl.operate.looking import checkpoint_soon, list_decisions, orders, registered_pumps, status
from etl.operate.window_view import RowChange, decode, describe, find_window, newest, row_changes
from upstream.tso import parse_moment

__all__ = [
    "ACTIONS",
    "APPLY",
    "AS_SET",
    "BOTH",
    "LAND",
    "Form",
    "OperateError",
    "RowChange",
    "accept",
    "act",
    "checkpoint_soon",
    "decode",
    "describe",
    "find_window",
    "for_run",
    "identity",
    "list_decisions",
    "newest",
    "order_job",
    "orders",
    "parse_moment",
    "pause",
    "paused_dag",
    "registered_pumps",
    "remove_decision",
    "replace_ddl",
    "resume",
    "row_changes",
    "run_until",
    "skip_ddl",
    "skip_transaction",
    "status",
    "stopped_dags",
]
