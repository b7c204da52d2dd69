"""Report wrong settings as this file's import error in Airflow; there is no DAG in it.

The error names the pipeline and what is wrong. The DAGs of all other pipelines are there all the
same. So are those of a pipeline whose file can't be read: their tasks fail with the same error.
"""

from __future__ import annotations

from sluice.etl.settings.pipelines import check_pipelines

check_pipelines()
