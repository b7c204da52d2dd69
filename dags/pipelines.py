"""No DAG of its own: what Airflow shows as an import error of this file says what is wrong with the
settings of which pipeline. The DAGs of the others are there all the same; those of a pipeline whose
file can't be read are too, and their tasks say so.
"""

from __future__ import annotations

from sluice.etl.settings.pipelines import check_pipelines

check_pipelines()
