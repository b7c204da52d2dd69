"""Airflow's api-server in one process, quick to start: a fresh database, the DAGs as they are, six
people, and an address with a prefix. Run as `python -m tests.plugins.pages_server FOLDER PORT`; the
environment is `environment`'s.
"""

import json
import os
import secrets
import sys
from pathlib import Path

from sluice.devstack.repository import DAGS

PREFIX = "/airflow"
PEOPLE = {
    "ann": "admin",
    "oli": "op",
    "uma": "user",
    "vic": "viewer",
    "rex": "viewer",
    "val": "viewer",
}
"""Airflow's roles: viewers may not trigger DAGs; `narrow_auth_manager` takes more from two of them.
"""


def environment(folder: Path, port: int) -> dict[str, str]:
    """For Airflow in that folder; writes the people's passwords, which are their names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "passwords.json").write_text(json.dumps({name: name for name in PEOPLE}))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "SLUICE"))
    }
    return inherited | {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.plugins.narrow_auth_manager.NarrowAuthManager",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
            f"{name}:{role}" for name, role in PEOPLE.items()
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}{PREFIX}",
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder / 'airflow.db'}",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    }


def main(folder: Path, port: int) -> None:
    from airflow.utils.db import initdb

    initdb()
    _read_dags()

    import uvicorn
    from airflow.api_fastapi.app import create_app

    config = uvicorn.Config(create_app(), host="127.0.0.1", port=port, log_level="warning")
    server = uvicorn.Server(config)
    server.run()


def _read_dags() -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(
        DagBag(str(DAGS), bundle_name="dags-folder", bundle_path=DAGS), "dags-folder", None
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
