"""The rooms import each other only in the direction that docs/architecture.md gives, and by their doors."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ANYTHING = {"dags", "pump_service", "etl", "relay", "upstream", "errors", "embedded", "cli", "bench"}
ROOMS = {
    "dags": {"etl", "relay"},
    "pump_service": {"errors", "upstream"},
    "etl": {"errors", "relay", "upstream"},
    "relay": {"errors", "upstream"},
    "upstream": {"errors"},
    "errors": set(),
    "embedded": ANYTHING - {"cli"},
    "cli": ANYTHING,
    "bench": ANYTHING,
}
"""What each may import."""
ETL = {
    "dialect": set(),
    "steps": set(),
    "waiting": set(),
    "recorded_schema": set(),
    "formats": {"dialect"},
    "rules": {"formats", "steps"},
    "shapes": {"formats", "steps"},
    "settings": {"rules"},
    "downstream": {"dialect", "formats", "settings"},
    "spark": set(),
    "explode": {"spark"},
    "prepare": {"recorded_schema", "rules", "shapes", "steps"},
    "ddl": {"dialect", "downstream", "formats", "steps"},
    "sinks": {"ddl", "downstream", "formats", "rules", "settings", "shapes", "steps"},
    "ownership": {"downstream", "settings"},
    "landing": {"downstream", "explode", "ownership", "recorded_schema", "settings", "sinks", "spark", "waiting"},
    "operate": {
        "ddl", "downstream", "formats", "landing", "ownership", "recorded_schema", "settings", "shapes", "sinks",
    },
    "copy": {"ddl", "downstream", "formats", "landing", "ownership", "rules", "settings", "spark", "steps", "waiting"},
    "apply": {
        "downstream", "formats", "operate", "ownership", "prepare", "recorded_schema", "rules", "settings",
        "sinks", "spark", "steps", "waiting",
    },
    "task": {"settings", "waiting"},
    "__init__": {"apply", "landing", "settings"},
}  # fmt: skip
"""What each inner room of `etl` may import of the others; all may import relay and upstream."""


def modules(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.py") if "_pb" not in path.parts)


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a module imports, also in functions and for type checking."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inner_room(path: Path) -> str:
    return path.relative_to(ROOT / "etl").with_suffix("").parts[0]


def test_the_tables_hold_every_room_and_no_other():
    folders = {path.parent.name for path in ROOT.glob("[a-z]*/*.py")}
    assert folders - {"tests", "docs"} == set(ROOMS)
    assert {inner_room(path) for path in modules(ROOT / "etl")} == set(ETL)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_what_the_architecture_allows(room: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(ROOT / room)
        for name in imported(path)
        if name.split(".")[0] in set(ROOMS) - {room} - ROOMS[room]
    }
    assert not wrong


@pytest.mark.parametrize("room", sorted(ETL))
def test_an_inner_room_imports_only_what_the_architecture_allows(room: str) -> None:
    used = {
        name.split(".")[1]
        for path in modules(ROOT / "etl")
        if inner_room(path) == room
        for name in imported(path)
        if name.startswith("etl.")
    } - {room}
    assert used - ETL[room] == set(), "not allowed"
    assert ETL[room] - used == set(), "allowed, but not used: leave it out of the table"


def test_no_inner_room_imports_itself_by_way_of_others():
    assert list(graphlib.TopologicalSorter(ETL).static_order())  # raises CycleError
    assert "__init__" not in set().union(*ETL.values())


def test_what_begins_with_an_underscore_stays_in_its_folder():
    wrong = set()
    for room in ROOMS:
        for path in modules(ROOT / room):
            here = path.relative_to(ROOT).parts[:-1]
            for name in imported(path):
                parts = tuple(name.split("."))
                hidden = next((i for i, part in enumerate(parts) if part.startswith("_") and part != "_pb"), None)
                if hidden is not None and parts[0] in ROOMS and parts[:hidden] != here[:hidden]:
                    wrong.add(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_dag_files_wire_and_do_not_think():
    for path in (ROOT / "dags").glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, f"{path.name} is too long for a DAG file"
