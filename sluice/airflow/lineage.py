"""Give OpenLineage's listener the tables that a task read and wrote, where Airflow has it.

`apache-airflow-providers-openlineage` calls `get_openlineage_facets_on_complete` of an operator
when its task has ended, in a process of its own. Without the provider nothing here runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from sluice.airflow.agent_client import call
from sluice.errors import SluiceError
from sluice.etl.settings.pipelines import NamedPipeline

__all__ = ["job_lineage", "report_lineage"]

log = logging.getLogger("sluice")


def report_lineage(output: Any, pipeline: NamedPipeline) -> None:
    """Have a task that applies report its lineage; `output`: what calling its function returned.

    An operator that is made from a function has no class of ours that could have the method.
    """
    output.operator.get_openlineage_facets_on_complete = _facets_of(pipeline)


def _facets_of(pipeline: NamedPipeline) -> Callable[[Any], Any]:
    def get_openlineage_facets_on_complete(task_instance: Any) -> Any:
        began = getattr(task_instance, "start_date", None)
        since_ms = int(began.timestamp() * 1000) if began is not None else 0
        return _known_lineage(pipeline, since_ms=since_ms)

    return get_openlineage_facets_on_complete


def job_lineage(pipeline: NamedPipeline, job: str) -> Any:
    """Return the provider's object for a job's tables, None if they aren't known."""
    return _known_lineage(pipeline, job=job)


def _known_lineage(pipeline: NamedPipeline, **asked: Any) -> Any:
    try:
        return _operator_lineage(call(pipeline, "lineage", **asked))
    except (SluiceError, OSError) as error:  # an event is worth no task
        log.warning("the lineage of this task is not known: %s", error)
        return None


def _operator_lineage(found: Mapping[str, Any]) -> Any:
    """Return the provider's object for what the call `lineage` returned."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    if found["left_out"]:
        log.info("tables left out of the lineage: %d", found["left_out"])
    return OperatorLineage(
        inputs=[_dataset(one) for one in found["inputs"]],
        outputs=[_dataset(one) for one in found["outputs"]],
    )


def _dataset(one: Mapping[str, Any]) -> Any:
    from openlineage.client.event_v2 import Dataset
    from openlineage.client.facet_v2 import column_lineage_dataset, schema_dataset

    facets: dict[str, Any] = {}
    if one["columns"]:
        facets["schema"] = schema_dataset.SchemaDatasetFacet(
            fields=[
                schema_dataset.SchemaDatasetFacetFields(name=name, type=type_)
                for name, type_ in one["columns"].items()
            ]
        )
    if one["sources"]:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(
            fields={
                name: column_lineage_dataset.Fields(inputFields=[_input(it) for it in sources])
                for name, sources in one["sources"].items()
                if sources
            }
        )
    return Dataset(namespace=one["namespace"], name=one["name"], facets=facets)


def _input(source: Mapping[str, Any]) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset

    change = column_lineage_dataset.Transformation(
        type="DIRECT",
        subtype="TRANSFORMATION" if source["how"] else "IDENTITY",
        description=source["how"],
        masking=source["is_masked"],
    )
    return column_lineage_dataset.InputField(
        namespace=source["namespace"],
        name=source["name"],
        field=source["column"],
        transformations=[change],
    )
