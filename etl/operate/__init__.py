"""Let operators control a running pipeline, and show them its state.

`handover` and `takeover_check` are modules of their own: they need much that the other commands
don't.
"""

from sluice.etl.operate.commands import (
    APPLY,
    BOTH,
    LAND,
    MODE_AS_SET,
    OperateError,
    find_stopped_dags,
    notes_on_paused_dag,
    pause,
    resume,
    run_until,
    settings_for_run,
)
from sluice.etl.operate.form_actions import ACTIONS, OperateForm, dispatch, order_job
from sluice.etl.operate.override_commands import (
    accept,
    remove_override,
    replace_ddl,
    skip_ddl,
    skip_transaction,
)
from sluice.etl.operate.status import (
    list_overrides,
    orders,
    pumps_with_captures,
    read_checkpoint_in_time,
    registered_pumps,
    status,
)
from sluice.etl.operate.window_view import describe, find_window, latest_windows, row_changes
from sluice.tidb.moments import parse_moment

__all__ = [
    "ACTIONS",
    "APPLY",
    "BOTH",
    "LAND",
    "MODE_AS_SET",
    "OperateError",
    "OperateForm",
    "accept",
    "describe",
    "dispatch",
    "find_stopped_dags",
    "find_window",
    "latest_windows",
    "list_overrides",
    "notes_on_paused_dag",
    "order_job",
    "orders",
    "parse_moment",
    "pause",
    "pumps_with_captures",
    "read_checkpoint_in_time",
    "registered_pumps",
    "remove_override",
    "replace_ddl",
    "resume",
    "row_changes",
    "run_until",
    "settings_for_run",
    "skip_ddl",
    "skip_transaction",
    "status",
]
