"""Point-in-time restore: any tables as of any moment of the archive, into a database or into files.

All but the errors is imported on first use: Airflow's pages, which come through this door, need hardly any of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.first_use import on_first_use
from etl.restore.errors import RestoreError, VerifyError

if TYPE_CHECKING:
    from etl.restore.files_folder import RestoredFile
    from etl.restore.files_jobs import FILES_KIND, ask_for_files, begun_files, cancel_files, run_files
    from etl.restore.files_plan import FilesPlan, plan_files
    from etl.restore.files_request import FilesRequest
    from etl.restore.files_summary import FilesSummary
    from etl.restore.form import files_request_of, request_of
    from etl.restore.jobs import ask_for, cancel_restore, run_restore
    from etl.restore.pace import KIND
    from etl.restore.plan import RestorePlan
    from etl.restore.planning import plan_restore
    from etl.restore.request import SAME_SERVER_INTO, Request
    from etl.restore.scratch import Scratch, scratch_schema
    from etl.restore.summary import RestoreSummary, Verified
    from etl.restore.ways import Ways

__all__ = [
    "FILES_KIND",
    "KIND",
    "SAME_SERVER_INTO",
    "FilesPlan",
    "FilesRequest",
    "FilesSummary",
    "Request",
    "RestoreError",
    "RestorePlan",
    "RestoreSummary",
    "RestoredFile",
    "Scratch",
    "Verified",
    "VerifyError",
    "Ways",
    "ask_for",
    "ask_for_files",
    "begun_files",
    "cancel_files",
    "cancel_restore",
    "files_request_of",
    "plan_files",
    "plan_restore",
    "request_of",
    "run_files",
    "run_restore",
    "scratch_schema",
]

__getattr__ = on_first_use(
    __name__,
    {
        "FILES_KIND": "etl.restore.files_jobs",
        "FilesPlan": "etl.restore.files_plan",
        "FilesRequest": "etl.restore.files_request",
        "FilesSummary": "etl.restore.files_summary",
        "KIND": "etl.restore.pace",
        "Request": "etl.restore.request",
        "RestorePlan": "etl.restore.plan",
        "RestoreSummary": "etl.restore.summary",
        "RestoredFile": "etl.restore.files_folder",
        "SAME_SERVER_INTO": "etl.restore.request",
        "Scratch": "etl.restore.scratch",
        "Verified": "etl.restore.summary",
        "Ways": "etl.restore.ways",
        "ask_for": "etl.restore.jobs",
        "ask_for_files": "etl.restore.files_jobs",
        "begun_files": "etl.restore.files_jobs",
        "cancel_files": "etl.restore.files_jobs",
        "cancel_restore": "etl.restore.jobs",
        "files_request_of": "etl.restore.form",
        "plan_files": "etl.restore.files_plan",
        "plan_restore": "etl.restore.planning",
        "request_of": "etl.restore.form",
        "run_files": "etl.restore.files_jobs",
        "run_restore": "etl.restore.jobs",
        "scratch_schema": "etl.restore.scratch",
    },
)
