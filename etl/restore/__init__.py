"""Point-in-time restore: any tables as of any moment of the archive, into a database or into files."""

from etl.restore.errors import RestoreError, VerifyError
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
