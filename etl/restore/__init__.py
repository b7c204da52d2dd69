"""Point-in-time restore: any tables as of any moment of the archive, into a database or into files."""

from etl.restore.errors import RestoreError, VerifyError
from etl.restore.files_plan import FilesPlan, plan_files
from etl.restore.form import files_request_of, request_of
from etl.restore.into_files import FilesRequest, RestoredFiles, restore_files
from etl.restore.jobs import ask_for, cancel_restore, run_restore
from etl.restore.pace import KIND
from etl.restore.plan import RestorePlan
from etl.restore.planning import plan_restore
from etl.restore.request import SAME_SERVER_INTO, Request
from etl.restore.scratch import Scratch, scratch_schema
from etl.restore.summary import RestoreSummary, Verified
from etl.restore.ways import Ways

__all__ = [
    "KIND",
    "SAME_SERVER_INTO",
    "FilesPlan",
    "FilesRequest",
    "Request",
    "RestoreError",
    "RestorePlan",
    "RestoreSummary",
    "RestoredFiles",
    "Scratch",
    "Verified",
    "VerifyError",
    "Ways",
    "ask_for",
    "cancel_restore",
    "files_request_of",
    "plan_files",
    "plan_restore",
    "request_of",
    "restore_files",
    "run_restore",
    "scratch_schema",
]
