"""Near real time replication of TiDB on Spark and Airflow."""
