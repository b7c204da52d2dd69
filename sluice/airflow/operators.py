"""Operators that run a pipeline's jobs, in Sluice's own DAGs and in those of other people."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, BaseOperatorLink

from sluice.airflow.agent_client import TaskFailedPermanently, call_task, end_call
from sluice.airflow.assets import verified_asset
from sluice.airflow.lineage import job_lineage
from sluice.airflow.notifying import page_address
from sluice.airflow.versions import (
    AirflowException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from sluice.errors import SluiceError
from sluice.etl.settings.pipelines import pipelines

__all__ = [
    "PICKED",
    "SluiceBackfillOperator",
    "SluiceBootstrapOperator",
    "SluiceJobOperator",
    "SluiceQualityOperator",
    "SluiceRestoreDrillOperator",
    "SluiceRestoreOperator",
    "SluiceSnapshotOperator",
    "SluiceVerifyOperator",
    "approved_form",
    "job_form",
    "log_hint",
]

PICKED = "_time"
"""End of the name of a form's field for a moment that is picked from a calendar."""


def log_hint(context: Mapping[str, Any]) -> None:
    """Log the error's hint as the last line of a failed task; Airflow calls it after all else."""
    error = context.get("exception")
    if isinstance(error, SluiceError) and error.hint:
        logging.getLogger("sluice").error("hint: %s", error.hint)


class JobLink(BaseOperatorLink):  # type: ignore[misc] # Airflow is untyped
    """Lead from a task to its job's place on the page Jobs."""

    name = "Job in Sluice"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address, "" if the task has no job. Called in the task's process."""
        del ti_key
        return operator.job_address() if isinstance(operator, SluiceJobOperator) else ""


class SluiceJobOperator(BaseOperator):  # type: ignore[misc] # Airflow is untyped
    """Run a job of a pipeline, or resume the unfinished one that was asked for the same.

    `kind` is one of `sluice.etl.tasks.job_kinds`, `form` has the fields of its DAG's form. Without
    a form, `job` is the id of a job that another task has begun. If that is None, the DAG's own
    form counts where a person has approved its plan, else the task is skipped. A task that
    is killed, cleared or marked pauses its job and ends what that has Spark do; the next attempt
    continues. The task fails for good if an operator has to act, or if a verification finds
    differences; without `fail_on_differences` it then returns them. What a verification found goes
    to `verified_asset` if that is an outlet of the task.
    """

    template_fields: Sequence[str] = ("pipeline", "form", "job")
    template_fields_renderers: ClassVar[dict[str, str]] = {"form": "json"}
    operator_extra_links = (JobLink(),)
    ui_color = "#e6f2ff"

    def __init__(
        self,
        *,
        kind: str,
        pipeline: str = "",
        form: Mapping[str, Any] | None = None,
        job: Any = None,
        fail_on_differences: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.on_failure_callback: Any = getattr(self, "on_failure_callback", None) or [log_hint]
        self.kind = kind
        self.pipeline = pipeline
        self.fail_on_differences = fail_on_differences
        self.form = None if form is None else dict(form)
        self.job = job
        self._working = False

    def execute(self, context: Any) -> dict[str, Any]:
        """Return the job's result. Raises TaskFailedPermanently, AirflowException if killed."""
        ti, form, found = context["ti"], self.form, pipelines().named(self.pipeline)
        run_id = ti.run_id
        if form is not None:
            run_id = f"{run_id} of the DAG {ti.dag_id}"
        elif self.job is None:
            form = approved_form(context["params"])
        self._working = True
        try:
            if form is not None:
                self.job = call_task(
                    found, "begin", kind=self.kind, form=form, run_id=run_id, scheduled=False
                )["job"]
            ti.xcom_push(JobLink().xcom_key, self.job_address())
            unchecked: dict[str, Any] = {} if self.fail_on_differences else {"checked": False}
            result: dict[str, Any] = call_task(
                found, "work", kind=self.kind, job=self.job, run_id=run_id, **unchecked
            )
            self._report_verified(context, result)
            return result
        except KeyboardInterrupt:
            raise AirflowException(f"the task was ended; its job {self.job} is paused") from None
        except AirflowTaskTimeout:
            with contextlib.suppress(KeyboardInterrupt):
                end_call(found)
            raise
        finally:
            self._working = False

    def _report_verified(self, context: Any, result: Mapping[str, Any]) -> None:
        asset = verified_asset(self.pipeline)
        if "equal" in result and asset in self.outlets:
            context["outlet_events"][asset].extra = {
                "unequal": [table["name"] for table in result["unequal"]],
                **{key: result[key] for key in ("equal", "differences", "job", "ts")},
            }

    def on_kill(self) -> None:
        """Pause the job, as Ctrl-C pauses a command's, and end what it has Spark do."""
        if self._working:
            end_call(pipelines().named(self.pipeline))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what a job copied, for the listener of Airflow's OpenLineage provider."""
        del task_instance
        return job_lineage(pipelines().named(self.pipeline), self.job) if self.job else None

    def job_address(self) -> str:
        """Return the address of the page Jobs at this job, "" before it has one."""
        if not self.job:
            return ""
        return page_address(self.pipeline, f"jobs#job-{self.job}")


def job_form(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a DAG's form with one field for each moment. Raises TaskFailedPermanently."""
    form = dict(params)
    for picked in [name for name in form if name.endswith(PICKED)]:
        name, time = picked.removesuffix(PICKED), form.pop(picked)
        if not time:
            continue
        if form.get(name):
            raise TaskFailedPermanently(
                f"the form has two moments: {name} is {form[name]!r}, {picked} is {time!r}",
                hint="trigger the DAG again, with one of the two fields empty",
            )
        form[name] = time
    return form


def approved_form(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a plan that a person has approved. Raises AirflowSkipException."""
    form = job_form(params)
    if not form.pop("approve", False) or form.get("plan_only"):
        raise AirflowSkipException("only planned: see the log of the task plan")
    return form


class _FormOperator(SluiceJobOperator):
    """A job with the form's fields as parameters."""

    kind_name: ClassVar[str]
    fields: ClassVar[Mapping[str, Any]]
    """Fields of the form with their defaults, as in the DAG file of the kind."""

    def __init__(self, *, pipeline: str = "", **kwargs: Any) -> None:
        form = {name: kwargs.pop(name, default) for name, default in self.fields.items()}
        super().__init__(
            kind=self.kind_name, pipeline=pipeline, form=form | {"plan_only": False}, **kwargs
        )


class SluiceVerifyOperator(_FormOperator):
    """Compare tables with the upstream at a live checkpoint; fail if rows differ."""

    kind_name = "verify"
    fields: ClassVar[Mapping[str, Any]] = {"tables": [], "how": "auto"}


class SluiceBackfillOperator(_FormOperator):
    """Copy tables, or rows of them, again beside replication, or compare them."""

    kind_name = "backfill"
    fields: ClassVar[Mapping[str, Any]] = {
        "tables": ["schema.table"],
        "mode": "compare",
        "rows_per_second": None,
        "where": None,
        "from_key": None,
        "to_key": None,
    }


class SluiceBootstrapOperator(_FormOperator):
    """Make an empty database a replica, in this one task."""

    kind_name = "bootstrap"
    fields: ClassVar[Mapping[str, Any]] = {
        "source": "tidb://",
        "tables": None,
        "into": None,
        "csv_separator": None,
        "csv_delimiter": None,
        "csv_line_terminator": None,
        "csv_null_value": "\\N",
        "csv_header": True,
        "escape_backslash": True,
    }


class SluiceSnapshotOperator(_FormOperator):
    """Put a snapshot of all tables into the archive."""

    kind_name = "snapshot"
    fields: ClassVar[Mapping[str, Any]] = {
        "source": None,
        "full": False,
        "escape_backslash": True,
    }


class SluiceRestoreOperator(_FormOperator):
    """Restore tables as of a moment, into a database or into files."""

    kind_name = "restore"
    fields: ClassVar[Mapping[str, Any]] = {
        "until": None,
        "tables": None,
        "into": None,
        "replacing": None,
        "verify": True,
        "connection": None,
        "target": None,
        "folder": None,
        "format": "parquet",
        "beside": False,
    }


class SluiceRestoreDrillOperator(_FormOperator):
    """Restore some tables as a drill, verify them, and drop them."""

    kind_name = "drill"
    fields: ClassVar[Mapping[str, Any]] = {"tables": 5, "max_mb": 10_000, "at": None}


class SluiceQualityOperator(BaseOperator):  # type: ignore[misc] # Airflow is untyped
    """Check the expectations of a pipeline's data; fail as their severity says."""

    template_fields: Sequence[str] = ("pipeline", "on", "suites", "as_of")
    ui_color = "#e6f2ff"

    def __init__(
        self,
        *,
        pipeline: str = "",
        on: str = "downstream",
        suites: Sequence[str] = (),
        as_of: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.on_failure_callback: Any = getattr(self, "on_failure_callback", None) or [log_hint]
        self.pipeline = pipeline
        self.on = on
        self.suites = list(suites)
        self.as_of = as_of

    def execute(self, context: Any) -> dict[str, Any] | None:
        """Return the checked suites with their states. Raises TaskFailedPermanently."""
        asked = {"on": self.on, "suites": self.suites, "as_of": self.as_of}
        found: dict[str, Any] | None = call_task(
            pipelines().named(self.pipeline),
            "check",
            what="quality",
            form=asked,
            run_id=context["ti"].run_id,
            scheduled=False,
        )
        return found
