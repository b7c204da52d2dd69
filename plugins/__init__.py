"""The pages in Airflow's navigation: what replication does, for people, and the buttons of those
who may act.

A page is a module under `pages/` with its JSON routes, a module of the same name under `static/`
that draws it, and a line in `navigation`. Airflow doesn't ask who comes before it hands a request
to a plugin's application, so this one does, on every route (`access`), and `app` is the one place
that puts it together.
"""
