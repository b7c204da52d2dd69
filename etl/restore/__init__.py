"""Point-in-time restore: any tables as of any moment of the archive, into a database or into files.

All but the errors is imported on first use: Airflow's pages, which come through this door, need
hardly any of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr
from sluice.etl.restore.errors import RestoreError, RestoreMismatchError

if TYPE_CHECKING:
    from sluice.etl.restore.executor import RestoreExecutor
    from sluice.etl.restore.files_folder import FilesSummary, RestoredFile
    from sluice.etl.restore.files_plan import FilesPlan, plan_files
    from sluice.etl.restore.jobs import (
        cancel_files,
        cancel_restore,
        create_or_resume,
        run_files,
        run_restore,
    )
    from sluice.etl.restore.plan import RestorePlan, RestoreSummary, RestoreVerification
    from sluice.etl.restore.planner import plan_restore
    from sluice.etl.restore.request import SAME_SERVER_INTO, FilesRequest, RestoreRequest
    from sluice.etl.restore.scratch import ScratchSchema, scratch_schema_name

__all__ = [
    "SAME_SERVER_INTO",
    "FilesPlan",
    "FilesRequest",
    "FilesSummary",
    "RestoreError",
    "RestoreExecutor",
    "RestoreMismatchError",
    "RestorePlan",
    "RestoreRequest",
    "RestoreSummary",
    "RestoreVerification",
    "RestoredFile",
    "ScratchSchema",
    "cancel_files",
    "cancel_restore",
    "create_or_resume",
    "plan_files",
    "plan_restore",
    "run_files",
    "run_restore",
    "scratch_schema_name",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "FilesPlan": "sluice.etl.restore.files_plan",
        "FilesRequest": "sluice.etl.restore.request",
        "FilesSummary": "sluice.etl.restore.files_folder",
        "RestoreRequest": "sluice.etl.restore.request",
        "RestorePlan": "sluice.etl.restore.plan",
        "RestoreSummary": "sluice.etl.restore.plan",
        "RestoredFile": "sluice.etl.restore.files_folder",
        "SAME_SERVER_INTO": "sluice.etl.restore.request",
        "ScratchSchema": "sluice.etl.restore.scratch",
        "RestoreVerification": "sluice.etl.restore.plan",
        "RestoreExecutor": "sluice.etl.restore.executor",
        "create_or_resume": "sluice.etl.restore.jobs",
        "cancel_files": "sluice.etl.restore.jobs",
        "cancel_restore": "sluice.etl.restore.jobs",
        "plan_files": "sluice.etl.restore.files_plan",
        "plan_restore": "sluice.etl.restore.planner",
        "run_files": "sluice.etl.restore.jobs",
        "run_restore": "sluice.etl.restore.jobs",
        "scratch_schema_name": "sluice.etl.restore.scratch",
    },
)
