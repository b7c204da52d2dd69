"""The pipelines: one of the file ``SLUICE_CONFIG``, and one for each file in ``SLUICE_PIPELINES``.

The latter is a folder; each of its ``*.toml`` is a pipeline with the file's name. The first has no
name, and its DAGs are called ``sluice_replicate``, ``sluice_archive`` and so on; those of the
pipeline ``shop`` are ``sluice_replicate_shop``, ``sluice_archive_shop``. Both variables may be set:
a user with one pipeline who adds another leaves the first as it is. Without either there is the one
without a name, and its tasks report what is missing.

Airflow parses DAG files again and again. They need section ``[airflow]`` and the schedules, and
nothing heavy is imported for these; all other settings are read when a task needs them. An error of
one pipeline never affects another: see `Pipelines.problems`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.etl.settings.airflow_section import Airflow
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.pauses import hours_of_day, keep_ms
from sluice.etl.settings.pipeline_names import (
    CONFIG_VARIABLE,
    FOLDER_VARIABLE,
    dag_id,
    files_of,
    folder_of_pipelines,
    name_problem,
)
from sluice.etl.settings.section_parser import parse_section

if TYPE_CHECKING:
    from sluice.etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class NamedPipeline:
    """A pipeline.

    `name` is empty for that of ``SLUICE_CONFIG``; `path` is None if nothing names its file.
    """

    name: str
    path: Path | None

    @property
    def settings(self) -> Settings:
        """Read the settings, each time. Raises SettingsError, which names the file."""
        from sluice.etl.settings.sluice_toml import load_settings

        if self.name and (others := _conflicts_with(self)):
            raise SettingsError(others)
        return load_settings(self.path)

    def dag_id(self, kind: str) -> str:
        """Return the id of its DAG of that kind: ``sluice_replicate``, with its name behind."""
        return dag_id(kind, self.name, self.airflow.dag_prefix)

    @property
    def airflow(self) -> Airflow:
        """Return section ``[airflow]``; the defaults if the file has an error, which is reported.

        Its tasks and `Pipelines.problems` report it.
        """
        try:
            return _airflow_section(self.path, self._document())
        except SettingsError:
            return Airflow()

    def schedule(self, section: str, key: str, default: str) -> timedelta | str | None:
        """Return a setting such as ``[verify] every`` as a schedule, None if it is empty.

        With `hours` in the section it is a cron expression: once in each of these hours, UTC.
        """
        try:
            setting = _declared_places(self._document())
            every_ms, hours = keep_ms(setting(section, key, default)), setting(section, "hours")
            in_hours = ",".join(map(str, sorted(hours_of_day(hours))))
        except (SettingsError, ValueError):
            return None
        if every_ms and hours:
            return f"0 {in_hours} * * *"
        return timedelta(milliseconds=every_ms) if every_ms else None

    @property
    def tags(self) -> list[str]:
        """Return the tags of its DAGs: one that all have, its name if it has one, its own."""
        return ["sluice", *([self.name] if self.name else []), *self.airflow.tags]

    def _document(self) -> dict[str, Any]:
        return _document(self.path) if self.path is not None else {}


class Pipelines(Mapping[str, NamedPipeline]):
    """Pipelines by name, in the order of their names.

    `problems`: the errors of files that are no pipelines, or of pipelines with tasks that will
    stop; a text each, which names the file.
    """

    def __init__(self, found: Mapping[str, NamedPipeline], problems: tuple[str, ...] = ()) -> None:
        self._found = dict(sorted(found.items()))
        self._problems = problems

    def __getitem__(self, name: str) -> NamedPipeline:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def named(self, name: str) -> NamedPipeline:
        """Return the pipeline of that name. Raises SettingsError, which lists the names."""
        if name in self._found:
            return self._found[name]
        there = ", ".join(filter(None, self._found)) or "none with a name"
        raise SettingsError(
            f"there is no pipeline {name!r} in {folder_of_pipelines() or f'${FOLDER_VARIABLE}'};"
            f" there is {there}"
        )

    def problems(self) -> list[str]:
        """Return the errors in all files, each with the file's name; other pipelines go on."""
        found = list(self._problems)
        for pipeline in self._found.values():
            if pipeline.path is None:
                continue
            try:
                _airflow_section(pipeline.path, _document(pipeline.path))
            except SettingsError as error:
                found.append(str(error))
            else:
                found += [text] if (text := _conflicts_with(pipeline)) else []
        return found


def pipelines() -> Pipelines:
    """Return the pipelines that the environment names. Raises nothing; see `Pipelines.problems`."""
    found: dict[str, NamedPipeline] = {}
    problems: list[str] = []
    folder, config = folder_of_pipelines(), os.environ.get(CONFIG_VARIABLE, "")
    if config or folder is None:
        found[""] = NamedPipeline("", Path(config) if config else None)
    if folder is not None and not folder.is_dir():
        problems.append(f"{FOLDER_VARIABLE}: there is no folder {folder}")
    files = files_of(folder)
    if folder is not None and folder.is_dir() and not files:
        problems.append(f"{folder}: there is no pipeline, which is a file such as shop.toml")
    for path in files:
        if problem := name_problem(path, found):
            problems.append(problem)
        else:
            found[path.stem] = NamedPipeline(path.stem, path)
    return Pipelines(found, tuple(problems))


def check_pipelines() -> None:
    """Check all pipelines' files. Raises SettingsError with a line for each error."""
    if found := pipelines().problems():
        raise SettingsError("\n".join(found))


def _airflow_section(path: Path | None, document: Mapping[str, Any]) -> Airflow:
    raw = document.get("airflow", {})
    if not isinstance(raw, Mapping):
        raise SettingsError(f"{path}: [airflow] must be a table")
    try:
        return parse_section(str(path), "airflow", Airflow, raw)
    except SettingsError as error:
        text = str(error)
        raise SettingsError(text if str(path) in text else f"{path}: {text}") from None


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None


def _conflicts_with(pipeline: NamedPipeline) -> str:
    """Describe a conflict with a pipeline before this one, "" if there is none.

    They conflict if they have the same checkpoint in the same downstream, or keep dropped tables in
    the same place.
    """
    if pipeline.path is None:
        return ""
    document = _document(pipeline.path)
    own, bin_of_own = _checkpoint_place(document), _recycle_bin(document)
    for other in pipelines().values():
        if other.name >= pipeline.name or other.path is None:
            continue
        try:
            theirs = _document(other.path)
        except SettingsError:
            continue  # its own tasks report it
        if own and own == _checkpoint_place(theirs):
            return (
                f"{pipeline.path}: it has the checkpoint that {other.path} has ({own}): give one of"
                " them another downstream, or, if they write to other tables of it, another"
                f" [downstream] checkpoint-schema. Until then {pipeline.name} doesn't begin"
            )
        if bin_of_own and bin_of_own == _recycle_bin(theirs):
            return (
                f"{pipeline.path}: dropped tables of its downstream are kept where those of"
                f" {other.path} are ({bin_of_own}): give one of them another [downstream]"
                f" recycle-schema. Until then {pipeline.name} doesn't begin"
            )
    return ""


def _declared_places(document: Mapping[str, Any]) -> Callable[..., str]:
    def of(section: str, key: str, default: str = "") -> str:
        found = document.get(section)
        return str(found.get(key, default)) if isinstance(found, dict) else default

    return of


def _declared_host(of: Callable[..., str]) -> str:
    """Return the downstream's host, or the connection that has it; "" if neither is there."""
    host = of("downstream", "host").lower()
    connection = of("downstream", "connection")
    return host or (f"connection {connection}" if connection else "")


def _recycle_bin(document: Mapping[str, Any]) -> str:
    of = _declared_places(document)
    if of("downstream", "type", "mysql") != "mysql" or not (host := _declared_host(of)):
        return ""
    return (
        f"{host}:{of('downstream', 'port', '3306')},"
        f" {of('downstream', 'recycle-schema', 'sluice_recycle').lower()}"
    )


def _checkpoint_place(document: Mapping[str, Any]) -> str:
    """Return where a pipeline keeps its checkpoint, for people, too.

    "" if its file alone doesn't determine that.
    """
    of = _declared_places(document)
    match of("downstream", "type", "mysql"):
        case "file":
            return f"files in {place.rstrip('/')}" if (place := of("file", "dir")) else ""
        case "kafka":
            return f"savepoint {place}" if (place := of("kafka", "savepoint")) else ""
    if not (host := _declared_host(of)):
        return ""
    schema, table = (
        of("downstream", "checkpoint-schema", "tidb_binlog"),
        of("downstream", "checkpoint-table", "checkpoint"),
    )
    return f"{host}:{of('downstream', 'port', '3306')}, {schema.lower()}.{table.lower()}"
