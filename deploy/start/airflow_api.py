"""Start Airflow's api-server, whose user `admin` has the password of a file.

    python -m deploy.start.airflow_api

Airflow's simple auth manager wants a file that it may write, with all users in it, so one is made
under AIRFLOW_HOME at every start. With another auth manager start ``airflow api-server``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from deploy.start.secret_files import become, first_line

USER = "admin"
PASSWORD_VARIABLE = "AIRFLOW_ADMIN_PASSWORD_FILE"  # noqa: S105 - a name
PASSWORDS_VARIABLE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"


def write_passwords(source: str, target: Path) -> None:
    """Write Airflow's file of passwords, mode 0600.

    `source`: the file with the password. Raises OSError.
    """
    if not (password := first_line(PASSWORD_VARIABLE, source)):
        raise OSError(f"{PASSWORD_VARIABLE}: {source} is empty; deploy/make-secrets writes one")
    target.unlink(missing_ok=True)
    with open(
        target, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
    ) as file:
        json.dump({USER: password}, file)


def main() -> None:
    """Become the api-server, or end with a line that names what is missing."""
    try:
        write_passwords(os.environ[PASSWORD_VARIABLE], Path(os.environ[PASSWORDS_VARIABLE]))
    except KeyError as error:
        sys.exit(f"api-server: the environment has no {error.args[0]}")
    except OSError as error:
        sys.exit(f"api-server: {error}")
    become(["airflow", "api-server"], os.environ)


if __name__ == "__main__":
    main()
