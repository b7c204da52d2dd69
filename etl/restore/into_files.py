"""Restore tables as of a moment into files: Parquet, CSV or SQL.

Their definitions and a manifest are beside them. Tables are computed some at a time, and published
behind each of these portions: after a kill, the next process does what is left. Each table is
verified before that: the rows written are compared with a second computation.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.sql_text import double_backslashes, quote_name
from sluice.etl.changes.formats.table_fallbacks import as_bytes
from sluice.etl.downstream.ddl import create_table
from sluice.etl.history.as_of import (
    Fingerprint,
    PlanExecutor,
    TimeTravelQuery,
    fingerprint,
    tables_as_of,
)
from sluice.etl.history.as_of.output import (
    TableOutput,
    broken_columns,
    file_name,
    open_output_at,
    with_file_name,
)
from sluice.etl.restore.errors import RestoreMismatchError
from sluice.etl.restore.files_folder import FilesSummary, RestoredFile, RestoreFolder, crc_and_size
from sluice.etl.restore.files_plan import FilesPlan
from sluice.etl.settings import Settings
from sluice.relay.jobs import (
    CANCELLED,
    DONE,
    PAUSE,
    PAUSED,
    Job,
    JobCounts,
    JobRun,
    StopRequested,
    TableProgress,
)
from sluice.tidb import tso
from sluice.tidb.schema import Table
from sluice.tidb.table_name import exactly

__all__ = ["FilesRestoreJob"]

_TABLES_PER_QUERY = 50
"""The number of tables that are computed, and have their files open, at a time."""
_SERVER = Dialect.from_version("8.0.36")


class FilesRestoreJob:
    """One run of the job, in this process.

    Raises RestoreError for a folder with something else in it, VerifyError, LeaseLostError,
    FolderLockedError, AsOfError, relay errors, SparkError, OSError.
    """

    def __init__(
        self,
        settings: Settings,
        job: Job,
        run: JobRun,
        plan: FilesPlan,
        compute: PlanExecutor | None,
    ) -> None:
        """Create the files restore job; `compute`: where tables are computed, Spark if None."""
        self._settings = settings
        self._job = job
        self._run = run
        self._plan = plan
        self._compute = compute
        self._folder = RestoreFolder(plan.request, plan.tables, self._check)
        self._began = time.monotonic()
        self._made = 0

    def whole(self) -> FilesSummary:
        """Run the whole job, up to where it is ordered to stop."""
        try:
            self._check_stop("looking at the folder")
            self._folder.begin()
            left = [name for name in self._plan.tables if name not in self._folder.done]
            self._run.set_totals({name: self._progress(name) for name in self._plan.tables})
            for first in range(0, len(left), _TABLES_PER_QUERY):
                self._compute_tables(left[first : first + _TABLES_PER_QUERY])
            self._check_stop("writing down that it is done")
        except StopRequested:
            return self._stop()
        summary = self._summary(DONE)
        self._run.end(DONE, result=summary.to_json())
        return summary

    def cancel(self) -> FilesSummary:
        """Give it up: what the job made goes."""
        self._run.doing("removing the files")
        folder = self._plan.request.folder
        left = (f"{folder} was there before, and stays",) if self._plan.begun else ()
        if not left:
            self._folder.remove(self._plan.folders)
        summary = replace(self._summary(CANCELLED), left=left)
        self._run.end(CANCELLED, message="; ".join(left), result=summary.to_json())
        return summary

    def _stop(self) -> FilesSummary:
        self._run.look()
        if self._run.order == PAUSE:
            self._run.end(PAUSED)
            return self._summary(PAUSED)
        return self.cancel()

    def _progress(self, name: str) -> TableProgress:
        done = self._folder.done.get(name)
        return TableProgress(JobCounts(done.rows, done.bytes, 1) if done else JobCounts(), 0, 1)

    def _summary(self, state: str) -> FilesSummary:
        tables = tuple(self._folder.done[name] for name in sorted(self._folder.done))
        seconds = round(time.monotonic() - self._began, 3)
        request = self._plan.request
        return FilesSummary(
            self._job.id, request.until, request.folder, tables, self._made, state, seconds
        )

    def _check(self) -> None:
        """Raise LeaseLostError if another process has continued the job, as of now."""
        self._run.look()
        self._run.check()

    def _check_stop(self, what: str = "") -> None:
        """Raise StopRequested if the run is to end here, LeaseLostError."""
        self._run.check_order()
        if what:
            self._run.doing(what)

    # Some tables

    def _compute_tables(self, names: Sequence[str]) -> None:
        """Write the tables, compare what was written, publish it."""
        request = self._plan.request
        globs = [exactly(name) for name in names]
        past = tables_as_of(self._settings, request.until, globs, run=self._compute)
        files = [
            file
            for name in names
            for file in (file_name(name, request.kind), file_name(name, "schema.sql"))
        ]
        try:
            written, broken = self._written(past)
            self._check_stop("computing once more")
            self._compare(written, past.fingerprints())
            made = [self._described(name, past, written[name], broken[name]) for name in names]
            self._folder.publish(made)
        finally:
            self._folder.discard(files)
        self._made += len(made)
        for table in made:
            self._run.did(table.name, JobCounts(table.rows, table.bytes, 1))

    def _written(self, past: TimeTravelQuery) -> tuple[dict[str, Fingerprint], dict[str, set[str]]]:
        """Write the rows of each table.

        Return what they are, and the columns with text that isn't UTF-8.
        """
        written = dict.fromkeys(past.tables, Fingerprint())
        broken: dict[str, set[str]] = {name: set() for name in past.tables}
        self._check_stop(
            f"writing {', '.join(sorted(written)[:3])}{' …' if len(written) > 3 else ''}"
        )
        with contextlib.ExitStack() as files:
            outputs = {name: files.enter_context(self._output(past, name)) for name in past.tables}
            rows = files.enter_context(contextlib.closing(past.rows()))
            for name, batch in rows:
                self._check_stop()
                outputs[name].write(batch)
                broken[name] |= broken_columns(batch)
                written[name] += fingerprint(past.tables[name].table, [batch])
        return written, broken

    def _output(self, past: TimeTravelQuery, name: str) -> AbstractContextManager[TableOutput]:
        kind, schema = self._plan.request.kind, past.row_schemas()[name]
        return open_output_at(self._partial(name), kind, schema, past.tables[name].table)

    def _partial(self, name: str, ending: str = "") -> Path:
        return self._folder.partial(file_name(name, ending or self._plan.request.kind))

    def _compare(
        self, written: Mapping[str, Fingerprint], expected: Mapping[str, Fingerprint]
    ) -> None:
        for name, found in written.items():
            if found != expected[name]:
                raise RestoreMismatchError(
                    f"{name}: {found} were written, and {expected[name]} computed once more",
                    hint=(
                        f"`sluice jobs resume {self._job.id}` computes it again; if that fails,"
                        " too, it is a defect of Sluice"
                    ),
                )

    def _described(
        self, name: str, past: TimeTravelQuery, found: Fingerprint, broken: Collection[str]
    ) -> RestoredFile:
        """Return the table, with its definition written."""
        table = past.tables[name]
        path = self._partial(name, "schema.sql")
        with with_file_name(path):
            path.write_text(
                _definition(table.table, self._plan.request.until, broken), encoding="utf-8"
            )
        crc, size = crc_and_size(self._partial(name))
        file = file_name(name, self._plan.request.kind)
        return RestoredFile(
            name, file, found.rows, size, crc, found.to_json()["digest"], tuple(table.left_out)
        )


def _definition(table: Table, until: int, broken: Collection[str]) -> str:
    """Return the statements that make a table.

    Columns in `broken` hold bytes, as not all of their text is UTF-8.
    """
    columns = (as_bytes(column) if column.name in broken else column for column in table.columns)
    statement, warnings = create_table(replace(table, columns=tuple(columns)), _SERVER)
    warnings += [f"{name} holds bytes: not all of its text is UTF-8" for name in sorted(broken)]
    notes = "".join(f"-- {warning}\n" for warning in warnings)
    named = " ".join(table.full_name.split())
    schema = quote_name(table.schema_name)
    return (
        f"-- {named} as of {tso.text(until)}\n{notes}SET NAMES utf8mb4, foreign_key_checks = 0,"
        " sql_mode = '';\nCREATE DATABASE IF NOT EXISTS"
        f" {schema};\n{double_backslashes(statement)};\n"
    )
