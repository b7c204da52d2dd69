"""The rooms import each other only in the direction that docs/architecture.md gives."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"dags", "pump_service", "etl", "relay", "expectations", "upstream", "embedded", "cli", "plugins", "bench"}
MAY_IMPORT = {
    "dags": {"etl", "relay", "expectations"},
    "pump_service": {"upstream"},
    "etl": {"relay", "upstream"},
    "relay": set(),
    "expectations": {"etl"},
    "upstream": set(),
    "plugins": {"etl", "relay"},
    "embedded": ROOMS - {"cli"},
    "cli": ROOMS,
    "bench": ROOMS,
}


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found & ROOMS


@pytest.mark.parametrize("room", sorted(room for room in ROOMS if (ROOT / room).is_dir()))
def test_room_imports_only_what_the_architecture_allows(room):
    wrong = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in (ROOT / room).rglob("*.py")
        if "_pb" not in path.parts
        for other in imported_rooms(path) - {room} - MAY_IMPORT[room]
    }
    assert not wrong


def test_dag_files_wire_and_do_not_think():
    for path in (ROOT / "dags").glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, f"{path.name} is too long for a DAG file"
