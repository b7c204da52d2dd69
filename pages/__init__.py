"""Answer what the pages in Airflow ask: their JSON and actions, in the pipeline's environment.

Airflow's api-server authenticates people and passes requests on with their rights: to this
application in its own process, to one in a child process, or to `sluice pages`, a server. So the
api-server needs no password of a database or a store, and this package nothing of Airflow.
"""
