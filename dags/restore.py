"""Define the DAG ``restore``: restore tables as of a moment, beside the existing ones.

Trigger it with the moment. `plan` reports what will be done and what prevents it; `approve` waits
until a person has approved the plan, if the form says so. `work` loads the nearest snapshot from
the archive, applies what was committed after it, and compares the result with what Spark computes
by itself. It is a job: killed, or triggered again with the same values, it continues with what is
left; `sluice jobs` shows how far it is, pauses it, and cancels it: then nothing of it stays. With a
folder, tables become files there.
"""

from __future__ import annotations

from airflow.sdk import Param

from sluice.airflow.dag_factory import approval_param, dag_per_pipeline, job_tasks, moment_params
from sluice.etl.settings.pipelines import NamedPipeline

NAMES = {"type": ["null", "array"], "items": {"type": "string", "pattern": "^\\s*$|^[^.]+\\..+$"}}
PLACE = {"type": ["null", "string"], "section": "To another server"}
FILES = {"section": "Into files, not a database"}


PARAMS = {
    **moment_params(
        "until",
        "Until when",
        "Everything committed until then is in. A time with its zone, 2026-11-22T12:00:00+01:00, a"
        " TSO, or before:TSO, which is right before that commit (see sluice find). Empty: all that"
        " is landed.",
    ),
    "approve": approval_param(default=True),
    "plan_only": Param(
        default=False,
        type="boolean",
        title="Only plan",
        description=(
            "Show what would be done, how long it takes, and what prevents it. Nothing is written."
        ),
    ),
    "tables": Param(
        None,
        **NAMES,
        title="Tables",
        description=(
            "Names that they had then, such as shop.orders or shop.*, one a line. Empty: all."
        ),
    ),
    "into": Param(
        None,
        type=["null", "string"],
        title="Names of the databases",
        pattern="\\{schema\\}",
        description=(
            "Empty: {schema}_restored on the pipeline's server, and the upstream's names on another"
            " one."
        ),
    ),
    "replacing": Param(
        None,
        **NAMES,
        title="Tables that are replaced",
        description=(
            "Typed out as they are called where it is restored to, one a line. Others that are"
            " there stop it."
        ),
    ),
    "verify": Param(
        default=True,
        type="boolean",
        title="Verify",
        description="Compare every table with the state that Spark computes independently.",
    ),
    "connection": Param(
        None,
        **PLACE,
        title="Airflow connection",
        description=(
            "Its host, port, login and password are the server. [restore] targets must allow it."
        ),
    ),
    "target": Param(
        None,
        **PLACE,
        title="Or a settings file",
        description=(
            "A path that workers reach; its [downstream] is the server. No passwords in it. "
            "[restore] targets must allow it."
        ),
    ),
    "folder": Param(
        None,
        type=["null", "string"],
        **FILES,
        title="Folder",
        description=(
            "A path that workers reach, in [restore] folders. Rows, CREATE TABLE and a manifest are"
            " written there."
        ),
    ),
    "format": Param(
        "parquet",
        enum=["parquet", "csv", "sql"],
        **FILES,
        title="Format of the rows",
        description="Parquet, CSV, or SQL that a server reads.",
    ),
    "beside": Param(
        default=False,
        type="boolean",
        **FILES,
        title="Other files may be in the folder",
        description="Without it, a folder that holds something stops it.",
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""
    job_tasks(pipeline, "restore")


dag_per_pipeline("restore", __doc__, wire, params=PARAMS)
