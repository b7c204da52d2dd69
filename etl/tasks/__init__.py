"""The edge to Airflow: what tasks run, and the worker process that outlives runs."""
