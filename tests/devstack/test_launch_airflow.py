"""The empty database that a stack's Airflow begins with: migrated once, then kept for others."""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from sluice.devstack.launch.service import StackPaths

airflow = importlib.import_module("sluice.devstack.launch.airflow")


class Kept(NamedTuple):
    """Where databases are kept, and the home of the stack that has left one there."""

    folder: Path
    home: Path

    @property
    def database(self) -> Path:
        (found,) = self.folder.glob("airflow-*.db")
        return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder, home = (tmp_path_factory.mktemp(name) for name in ("kept", "first"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(airflow, "CACHE_FOLDER", folder)
        prepare(home)
    return Kept(folder, home)


@pytest.fixture
def nothing_migrates(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError(args)

    monkeypatch.setattr(subprocess, "run", refuse)


def prepare(home: Path) -> None:
    for part in airflow.airflow(StackPaths(home, {"airflow": 1}, home)):
        part.prepare()


def content(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def rows(database: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        counts = {
            name: connection.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0]
            for name in tables
        }
    return {name: count for name, count in counts.items() if count}


@pytest.mark.slow
def test_what_is_kept_is_what_was_migrated_and_holds_nothing_of_a_stack(kept: Kept) -> None:
    first = kept.home / "airflow"
    assert content(kept.database) == content(first / "airflow.db") == content(first / "empty.db")
    assert rows(kept.database).keys() == {"alembic_version", "log_template", "slot_pool"}
    secrets = [path.read_text() for path in (first / "secrets").iterdir()]
    assert len(secrets) == 4
    assert not [secret for secret in secrets if secret.encode() in kept.database.read_bytes()]


@pytest.mark.slow
def test_the_next_stack_begins_with_it_also_after_a_migration_that_was_killed(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_migrates: None
) -> None:
    monkeypatch.setattr(airflow, "CACHE_FOLDER", kept.folder)
    (tmp_path / "airflow").mkdir()
    for name in ("airflow.db", "airflow.db-journal"):
        (tmp_path / "airflow" / name).write_text("half of it")
    prepare(tmp_path)
    assert content(tmp_path / "airflow" / "airflow.db") == content(kept.database)
    assert content(tmp_path / "airflow" / "empty.db") == content(kept.database)
    assert not (tmp_path / "airflow" / "airflow.db-journal").exists()


@pytest.mark.slow
def test_a_stack_that_has_one_keeps_it(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_migrates: None
) -> None:
    monkeypatch.setattr(airflow, "CACHE_FOLDER", kept.folder)
    prepare(tmp_path)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "airflow" / "airflow.db")) as database,
        database,
    ):
        database.execute("UPDATE slot_pool SET slots = 7")
    before = content(tmp_path / "airflow" / "airflow.db")
    prepare(tmp_path)
    assert content(tmp_path / "airflow" / "airflow.db") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_bytes(b"damaged"), lambda path: path.write_bytes(b"")]
)
def test_one_that_is_damaged_is_not_taken(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_migrates: None, spoil
) -> None:
    monkeypatch.setattr(airflow, "CACHE_FOLDER", tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    spoil(tmp_path / "kept" / kept.database.name)
    with pytest.raises(AssertionError, match="migrate"):
        prepare(tmp_path)


@pytest.mark.slow
def test_one_of_another_airflow_is_not_taken(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_migrates: None
) -> None:
    monkeypatch.setattr(airflow, "CACHE_FOLDER", kept.folder)
    monkeypatch.setattr(airflow, "version", lambda name: "99.0")
    with pytest.raises(AssertionError, match="migrate"):
        prepare(tmp_path)


def test_lineage_is_reported_only_where_its_transport_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings() -> dict[str, str]:
        part = airflow.airflow(StackPaths(tmp_path, {"airflow": 1}, tmp_path))[0]
        return {key: it for key, it in part.env.items() if "OPENLINEAGE" in key}

    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "here")
    assert settings() == {"AIRFLOW__OPENLINEAGE__DISABLED": "True"}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')
    assert settings() == {
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "here",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": '{"type": "console"}',
    }
