"""Serve Sluice's pages in Airflow's navigation: the state of replication, and its controls.

A page is a module under `pages/` with its JSON routes, a module of the same name under `static/`
that draws it, and a line in `navigation`. Airflow does not authenticate requests before it hands
them to a plugin's application. So this application does, on every route (`auth`); `app` is the one
place that puts it together.
"""
