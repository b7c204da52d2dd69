"""Define the DAG ``bootstrap``: make an empty database a replica.

Trigger it with the source of the rows. `plan` reports what will be done and what prevents it,
`approve` waits for a person if the form says so, `prepare` makes the tables, `copy` brings the
rows, in several tasks side by side, `finish` adds indexes, counts, and writes the checkpoint: the
DAG `replicate` goes on from there by itself. It is a job: killed, or triggered again with the same
values, it continues with what is left; `sluice jobs` shows how far it is, pauses it, and cancels
it.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, task

from sluice.airflow.agent_client import call_task
from sluice.airflow.dag_factory import approval_param, approve_task, dag_per_pipeline, plan_task
from sluice.airflow.operators import approved_form
from sluice.etl.settings.pipelines import NamedPipeline

NAMES = {"type": ["null", "array"], "items": {"type": "string", "minLength": 1}}
TEXT = {
    "type": ["null", "string"],
    "section": "Of a dump's files; an empty field is taken from their header",
}


PARAMS = {
    "source": Param(
        "tidb://",
        type="string",
        minLength=1,
        title="Where rows come from",
        description=(
            "tidb:// is TiDB itself, at [upstream] sql-host, as it is when the copy begins. Or a"
            " folder that Dumpling wrote: a path that Spark's workers reach, or a URL (file, s3,"
            " gs, az). No passwords."
        ),
    ),
    "approve": approval_param(default=False),
    "plan_only": Param(
        default=False,
        type="boolean",
        title="Only plan",
        description="Show what would be done, and what prevents it. Nothing is written.",
    ),
    "tables": Param(
        None,
        **NAMES,
        title="Tables",
        description=(
            "Names such as shop.orders or shop.*, one a line. Empty: all that the settings want."
        ),
    ),
    "into": Param(
        None,
        **NAMES,
        title="Databases that may hold other tables",
        description="Downstream, one a line. Any other database that tables go to must be empty.",
    ),
    "tasks": Param(
        2,
        type="integer",
        minimum=1,
        maximum=16,
        title="Tasks side by side",
        description=(
            "Each copies a share of the rows, with its share of the [apply] worker-count sessions."
        ),
    ),
    "csv_separator": Param(
        None, **TEXT, title="Separator", description="Between fields, such as , or \\t."
    ),
    "csv_delimiter": Param(
        None, **TEXT, title="Delimiter", description='Around fields, such as ".'
    ),
    "csv_line_terminator": Param(
        None, **TEXT, title="Line terminator", description="Such as \\r\\n."
    ),
    "csv_null_value": Param(
        "\\N",
        type="string",
        section=TEXT["section"],
        title="NULL",
        description="How NULL is spelled.",
    ),
    "csv_header": Param(
        default=True,
        type="boolean",
        section=TEXT["section"],
        title="Header",
        description="Whether CSV files begin with the columns' names.",
    ),
    "escape_backslash": Param(
        default=True,
        type="boolean",
        section=TEXT["section"],
        title="Backslash escapes",
        description="Off if Dumpling was given --escape-backslash=false.",
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""

    def step(name: str, *arguments: Any) -> Any:
        return call_task(pipeline, "bootstrap_step", step=name, arguments=list(arguments))

    @task
    def prepare(
        job: str | None, params: dict[str, Any] | None = None, run_id: str | None = None
    ) -> Any:
        form = params or {}
        wanted = approved_form(form) if job is None else job
        return step("prepare", wanted, form["tasks"], run_id or "")

    @task(
        map_index_template=(
            "share {{ task.op_kwargs['share']['share'] + 1 }} of {{"
            " task.op_kwargs['share']['of'] }}"
        )
    )
    def copy(share: dict[str, Any], run_id: str | None = None) -> Any:
        return step("copy_share", share, run_id or "")

    @task
    def finish(shares: list[dict[str, Any]], run_id: str | None = None) -> Any:
        return step("finish", shares[0]["job"], run_id or "")

    job = plan_task(pipeline, "bootstrap")
    shares = prepare(job)
    job >> approve_task("bootstrap") >> shares
    copy.expand(share=shares) >> finish(shares)


dag_per_pipeline("bootstrap", __doc__, wire, params=PARAMS, max_active_runs=1)
