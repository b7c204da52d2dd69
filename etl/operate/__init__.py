"""Let operators control a running pipeline, and show them its state.

`handover` and `takeover_check` are modules of their own: they need much that the other commands
don't. Names load on first use, but for `status`: a module and a function have that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr
from sluice.etl.operate.status import (
    failures,
    list_overrides,
    orders,
    pumps_with_captures,
    read_checkpoint_in_time,
    registered_pumps,
    status,
)

if TYPE_CHECKING:
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
    from sluice.etl.operate.window_view import describe, find_window, latest_windows, row_changes
    from sluice.etl.upstream_clock import upstream_moment

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
    "failures",
    "find_stopped_dags",
    "find_window",
    "latest_windows",
    "list_overrides",
    "notes_on_paused_dag",
    "order_job",
    "orders",
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
    "upstream_moment",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "APPLY": "sluice.etl.operate.commands",
        "BOTH": "sluice.etl.operate.commands",
        "LAND": "sluice.etl.operate.commands",
        "MODE_AS_SET": "sluice.etl.operate.commands",
        "OperateError": "sluice.etl.operate.commands",
        "find_stopped_dags": "sluice.etl.operate.commands",
        "notes_on_paused_dag": "sluice.etl.operate.commands",
        "pause": "sluice.etl.operate.commands",
        "resume": "sluice.etl.operate.commands",
        "run_until": "sluice.etl.operate.commands",
        "settings_for_run": "sluice.etl.operate.commands",
        "ACTIONS": "sluice.etl.operate.form_actions",
        "OperateForm": "sluice.etl.operate.form_actions",
        "dispatch": "sluice.etl.operate.form_actions",
        "order_job": "sluice.etl.operate.form_actions",
        "accept": "sluice.etl.operate.override_commands",
        "remove_override": "sluice.etl.operate.override_commands",
        "replace_ddl": "sluice.etl.operate.override_commands",
        "skip_ddl": "sluice.etl.operate.override_commands",
        "skip_transaction": "sluice.etl.operate.override_commands",
        "describe": "sluice.etl.operate.window_view",
        "find_window": "sluice.etl.operate.window_view",
        "latest_windows": "sluice.etl.operate.window_view",
        "row_changes": "sluice.etl.operate.window_view",
        "upstream_moment": "sluice.etl.upstream_clock",
    },
)
