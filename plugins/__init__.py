"""Show Sluice's pages in Airflow's navigation, and pass on what they ask.

This package is Airflow's side, and a part of the thin provider. It authenticates every request,
asks Airflow for the user's rights, serves the files that browsers draw the pages with, and hands
requests for JSON to the pipeline's side (`sluice.pages`), which has a module a page. A page is also
a module of its name under `static/` and a line in `html_shell`. Airflow does not authenticate
requests before it hands them to a plugin's application. So this application does, on every route.
"""
