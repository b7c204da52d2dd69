"""The paths of files that Sluice needs beside its code.

A clone has all of them; a package installed from a wheel has the DAG files, the versions it was
tested with, and of the recordings the one that is played by default.

Nearly every command asks for `default_home`, so what else is needed is imported in the functions.
"""

from __future__ import annotations

import os
from pathlib import Path

import sluice

IMPORT_PATH = Path(sluice.__file__).parents[1]
"""The entry of sys.path that the package `sluice` is imported from."""

REPOSITORY = Path(__file__).resolve().parents[1]
"""The folder that holds the packages.

The repository in a clone, site-packages/sluice if it was installed from a wheel.
"""

DAGS = REPOSITORY / "dags"
"""The folder with the DAG files."""

CONSTRAINTS = REPOSITORY / "devstack" / "constraints.txt"
"""The versions of other packages that this release was tested with.

Only a wheel has it; a clone has uv.lock.
"""

_AIRFLOW_CFG = "airflow.cfg"
_IN_THE_WHEEL = REPOSITORY / "devstack" / "recordings"


def default_home() -> Path:
    """Return the state folder of the one-machine stack.

    It is ``$SLUICE_HOME``, else ``.sluice`` in the repository; for an installed package ``sluice``
    in ``$XDG_STATE_HOME`` or ``~/.local/state``.
    """
    named = os.environ.get("SLUICE_HOME")
    if named:
        return Path(named).absolute()
    if (REPOSITORY / "pyproject.toml").exists():
        return REPOSITORY / ".sluice"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sluice"


def airflow_cfg() -> Path:
    """Return Airflow's settings.

    They are at the top of a clone, in the folder `devstack` of an installed package.
    """
    top = REPOSITORY / _AIRFLOW_CFG
    return top if top.exists() else REPOSITORY / "devstack" / _AIRFLOW_CFG


def recording_folder(where: str) -> Path:
    """Return the recording at `where`, a path in the repository.

    Raises StackError if this is no clone, and the package doesn't have it either.
    """
    folder = REPOSITORY / where
    if not folder.is_dir():
        folder = _IN_THE_WHEEL / folder.name
    if not folder.is_dir():
        from sluice.devstack.state import StackError

        raise StackError(
            f"the recording {where} is in Sluice's repository, not in the installed package: run"
            " this in a clone, or name the folder of a recording with --recording where the"
            " command has that option"
        )
    return folder


def untested() -> dict[str, tuple[str, str]]:
    """Return name → (installed version, tested one) where they differ.

    Empty in a clone, which has those of uv.lock.
    """
    if not CONSTRAINTS.exists():
        return {}
    from importlib import metadata

    lines = (
        line.partition(" ;")[0] for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    )
    tested: dict[str, set[str]] = {}
    for line in lines:
        name, equals, version = line.strip().partition("==")
        if equals:
            tested.setdefault(name, set()).add(version)
    found = {}
    for name, versions in tested.items():
        try:
            there = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if there not in versions:
            found[name] = (there, " or ".join(sorted(versions)))
    return found
