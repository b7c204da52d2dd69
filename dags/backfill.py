"""Define the DAG ``backfill``: copy tables, or rows of them, again beside `replicate`.

Trigger it with the tables. `plan` reports what will be done and what prevents it; `work` reads
chunk after chunk from TiDB, each as of one timestamp, and `replicate` writes each when the
downstream is exactly there. It is a job: killed, or triggered again with the same values, it
continues with what is left; `sluice jobs` shows how far it is, pauses it, and cancels it.
"""

from __future__ import annotations

from airflow.sdk import Param

from sluice.airflow.dag_factory import approval_param, dag_per_pipeline, job_tasks
from sluice.etl.settings.pipelines import NamedPipeline

TEXT = {"type": ["null", "string"], "section": "Only some of the rows"}
MODES = {
    "replace": "replace: rows become what they are upstream, and those that upstream hasn't go",
    "missing": "missing: only rows are written whose key isn't there",
    "compare": "compare: nothing is written, differences are reported",
}


PARAMS = {
    "tables": Param(
        ["schema.table"],
        type="array",
        minItems=1,
        title="Tables",
        items={"type": "string", "pattern": "^\\s*$|^[^.]+\\..+$"},
        description="Upstream names such as shop.orders or shop.*, one a line.",
    ),
    "mode": Param(
        "compare",
        type="string",
        enum=list(MODES),
        values_display=MODES,
        title="What is done with rows",
        description="To be safe, compare first.",
    ),
    "approve": approval_param(default=False),
    "plan_only": Param(
        default=False,
        type="boolean",
        title="Only plan",
        description="Show what would be done, and what prevents it. Nothing is written.",
    ),
    "rows_per_second": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Rows a second at most",
        description="Empty: as fast as replication bears.",
    ),
    "where": Param(
        None, **TEXT, title="Where", description="A condition in TiDB's SQL, such as id % 10 = 0."
    ),
    "from_key": Param(
        None,
        **TEXT,
        title="From this key on",
        description=(
            "Of one table: a value, several with commas between, or a JSON array. Empty: the first."
        ),
    ),
    "to_key": Param(
        None,
        **TEXT,
        title="Before this key",
        description="Spelled as the one above. Empty: through the last.",
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""
    job_tasks(pipeline, "backfill")


dag_per_pipeline("backfill", __doc__, wire, params=PARAMS)
