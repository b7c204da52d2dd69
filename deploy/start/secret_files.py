"""Become a program, with secrets from files.

    python -m deploy.start.secret_files PROGRAM ARGUMENT…

For each variable of NAMES that is missing while ``<name>_FILE`` is there, the file's first line is
its value. So a secret is neither in an image nor in what describes a container, only in the
process that needs it. It is the entry point of all images of Dockerfile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

NAMES = (
    "AIRFLOW_CONN_SLUICE_PAGES",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "SLUICE_PAGES_TOKEN",
    "SLUICE_TIDB_PASSWORD",
    "SPARK_AUTHENTICATE_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
)
"""Variables that may come from a file.

The connection of Airflow's api-server to `sluice pages`, its token, those of object stores, the one
for `[upstream] sql-password-env`, the secret of a standalone Spark cluster, and what clients of a
Spark Connect server must show.
"""


def secrets_of(environment: Mapping[str, str], names: Sequence[str] = NAMES) -> dict[str, str]:
    """Return the values of those variables that the environment names files for. Raises OSError."""
    return {
        name: first_line(f"{name}_FILE", path)
        for name in names
        if name not in environment and (path := environment.get(f"{name}_FILE"))
    }


def first_line(variable: str, path: str) -> str:
    """Return the first line of the file that `variable` names, "" of an empty one.

    Raises OSError, which names variable and file, never what is in it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OSError(f"{variable}: {path}: {why}") from None
    return lines[0] if lines else ""


def become(argv: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Become the program, found on PATH, with its secrets.

    Ends the process with a line if that can't be.
    """
    try:
        environment.update(secrets_of(environment))
        os.execvpe(argv[0], list(argv), dict(environment))  # noqa: S606 - that is what it is for
    except OSError as error:
        sys.exit(f"{argv[0]} isn't started: {error}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m deploy.start.secret_files PROGRAM ARGUMENT…")
    become(sys.argv[1:], os.environ)
