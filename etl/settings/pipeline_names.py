"""The names of pipelines: those of their files in the folder that ``SLUICE_PIPELINES`` names."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from sluice.etl.settings.errors import SettingsError

CONFIG_VARIABLE = "SLUICE_CONFIG"
FOLDER_VARIABLE = "SLUICE_PIPELINES"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""The names that a pipeline may have."""
_TAKEN = re.compile(r"(drill|continuously)(_|\Z)")
"""``restore_drill`` and ``verify_continuously`` are DAGs of their own, so no pipeline's ``restore``
or ``verify`` may be called so.
"""


def name_of(path: Path) -> str:
    """Return the name of the pipeline with its settings at `path`.

    "" if it isn't in the folder of pipelines. Raises SettingsError if its file name can't be a
    pipeline's.
    """
    folder = folder_of_pipelines()
    if folder is None or path.absolute().parent.resolve() != folder.resolve():
        return ""
    if problem := name_problem(path, ()):
        raise SettingsError(problem)
    return path.stem


def folder_of_pipelines() -> Path | None:
    """Return the folder, None if none is named."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    return Path(named) if named else None


def files_of(folder: Path | None) -> list[Path]:
    """Return the files of its pipelines, by name."""
    return (
        sorted(path for path in folder.glob("*.toml") if not path.name.startswith("."))
        if folder
        else []
    )


def name_problem(path: Path, found: Collection[str]) -> str:
    """Return why a file's name can't be a pipeline's, beside those that were `found`.

    "" if it can.
    """
    if not NAME.match(path.stem):
        return (
            f"{path}: a pipeline is called as its file is: letters, digits, _ and - only, at most"
            " 64; rename the file"
        )
    if _TAKEN.match(path.stem):
        return (
            f"{path}: a pipeline can't be called {path.stem}: the DAGs restore_drill and"
            " verify_continuously are others; rename the file"
        )
    if path.stem.lower() in {name.lower() for name in found}:
        return f"{path}: there is a pipeline whose name differs only in case; rename the file"
    return ""


def dag_id(kind: str, name: str, prefix: str) -> str:
    """Return the id of a pipeline's DAG of a kind, such as ``sluice_replicate``.

    `name` and `prefix` may be empty.
    """
    return f"{prefix}{kind}_{name}" if name else f"{prefix}{kind}"
