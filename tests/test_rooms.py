"""The rooms import each other only in the direction that docs/explanation/architecture.md gives, and by their doors."""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ANYTHING = {"dags", "expectations", "pump_service", "etl", "relay", "upstream", "errors", "embedded", "cli", "bench"}
ROOMS = {
    "dags": {"errors", "etl", "expectations", "relay"},
    "expectations": {"errors", "etl", "relay", "upstream"},
    "plugins": {"errors", "etl", "expectations", "relay"},
    "pump_service": {"errors", "upstream"},
    "etl": {"errors", "relay", "upstream"},
    "relay": {"errors", "upstream"},
    "upstream": {"errors"},
    "errors": set(),
    "embedded": ANYTHING - {"cli", "expectations"},
    "cli": ANYTHING,
    "bench": ANYTHING - {"expectations"},
    "monitoring": set(),
    "deploy": set(),
}
"""What each may import."""
ETL = {
    "asking": set(),
    "dialect": set(),
    "airflow_run": set(),
    "first_use": set(),
    "steps": {"formats"},
    "server_errors": set(),
    "sql_login": set(),
    "sql_tls": set(),
    "waiting": set(),
    "recorded_schema": set(),
    "formats": {"dialect"},
    "rules": {"formats", "steps"},
    "shapes": {"formats", "steps"},
    "settings": {"rules", "sql_tls"},
    "downstream": {"dialect", "formats", "server_errors", "settings", "sql_login"},
    "spark": {"settings", "waiting"},
    "explode": {"spark"},
    "prepare": {"recorded_schema", "rules", "shapes", "spark", "steps"},
    "lake": {"recorded_schema", "shapes"},
    "ddl": {"dialect", "downstream", "formats", "server_errors", "steps"},
    "sinks": {"ddl", "downstream", "formats", "rules", "server_errors", "settings", "shapes", "steps"},
    "ownership": {"downstream", "settings"},
    "landing": {"downstream", "explode", "ownership", "recorded_schema", "settings", "sinks", "spark", "waiting"},
    "operate": {
        "asking", "ddl", "downstream", "formats", "landing", "ownership", "recorded_schema", "server_errors",
        "settings", "shapes", "sinks",
    },
    "archive": {"lake", "settings", "spark", "waiting"},
    "copy": {
        "ddl", "downstream", "formats", "landing", "ownership", "rules", "server_errors", "settings", "spark",
        "sql_login", "sql_tls", "steps", "waiting",
    },
    "backfill": {
        "copy", "ddl", "downstream", "formats", "landing", "ownership", "rules", "settings", "shapes", "spark",
    },
    "apply": {
        "downstream", "formats", "operate", "ownership", "prepare", "recorded_schema", "rules", "settings", "shapes",
        "sinks", "spark", "steps", "waiting",
    },
    "reapply": {
        "apply", "backfill", "downstream", "formats", "ownership", "prepare", "recorded_schema", "rules",
        "server_errors", "settings", "shapes", "sinks", "spark", "steps",
    },
    "metrics": {"asking", "overview", "ownership", "settings"},
    "overview": {"asking", "downstream", "operate", "ownership", "retain", "settings"},
    "retain": {"formats", "rules", "settings"},
    "undo": {"downstream", "find", "formats", "recorded_schema", "rules", "settings", "shapes"},
    "find": {"formats", "prepare", "recorded_schema", "rules", "settings", "shapes", "spark"},
    "base": {
        "airflow_run", "asof", "copy", "downstream", "formats", "ownership", "rules", "server_errors", "settings",
        "spark",
    },
    "restore": {
        "apply", "archive", "asof", "base", "copy", "ddl", "dialect", "downstream", "formats", "ownership", "prepare",
        "recorded_schema", "rules", "settings", "sinks", "spark",
    },
    "asof": {"archive", "copy", "formats", "lake", "prepare", "recorded_schema", "settings", "shapes", "spark"},
    "verify": {
        "airflow_run", "asof", "backfill", "base", "copy", "downstream", "find", "first_use", "formats",
        "ownership", "prepare", "reapply", "retain", "rules", "settings", "shapes", "steps", "waiting",
    },
    "tables": {"ddl", "downstream", "find", "ownership", "recorded_schema", "rules", "settings"},
    "drill": {"airflow_run", "copy", "downstream", "ownership", "restore", "retain", "settings"},
    "resident": {"apply", "landing", "settings", "spark", "waiting"},
    "task": {"settings", "waiting"},
    "pipeline_dags": {"settings", "task"},
    "__init__": {"apply", "landing", "settings"},
}  # fmt: skip
"""What each inner room of `etl` may import of the others; all may import relay and upstream."""
ETL |= {
    room: ETL[room] | {"first_use"}
    for room in ("__init__", "archive", "asof", "backfill", "base", "copy", "find", "restore", "settings")
}
PUMP_SERVICE = {
    "histogram": set(),
    "store": {"histogram", "kernel"},
    "config": {"store"},
    "kernel": set(),
    "metrics": {"histogram", "store"},
    "cluster": {"store"},
    "ingest": {"cluster", "metrics", "store"},
    "lane": {"cluster", "config", "ingest", "kernel", "store"},
    "calls": {"cluster", "kernel", "lane", "metrics", "store"},
    "front": {"config", "lane"},
    "http": {"config", "metrics"},
    "heap": set(),
    "log": set(),
    "chores": {"cluster", "config", "ingest", "metrics", "store"},
    "server": {
        "calls", "chores", "cluster", "config", "front", "http", "ingest", "lane", "metrics", "store",
    },
    "command": {"config", "front", "heap", "log", "server"},
    "__init__": {"command"},
    "__main__": {"__init__"},
}  # fmt: skip
"""The same of `pump_service`; all may import upstream."""
UPSTREAM = {
    "_pb": set(),
    "backoff": set(),
    "binlog_kinds": set(),
    "column_types": set(),
    "folded": set(),
    "partition_bounds": set(),
    "ddl_actions": set(),
    "compile_kernels": set(),
    "genproto": set(),
    "compiled": set(),
    "kernel": {"compiled"},
    "rename_statement": set(),
    "rpc": set(),
    "lean": {"rpc"},
    "time_zone": set(),
    "tso": set(),
    "window_schema": set(),
    "pb": {"_pb"},
    "pb_grpc": {"_pb"},
    "table_name": set(),
    "schema": {"column_types", "table_name"},
    "by_id": {"schema"},
    "job": {"ddl_actions", "schema"},
    "ddl_job": {"ddl_actions", "folded", "by_id", "schema"},
    "ddl_session": {"conversion", "ddl_job", "time_zone", "tso"},
    "codec": {"column_types", "schema"},
    "conversion": {"codec", "column_types", "schema"},
    "old_collations": {"codec", "column_types", "schema"},
    "images": set(),
    "partition_expression": {"folded", "partition_bounds", "schema"},
    "partitions": {"folded", "partition_bounds", "partition_expression", "schema"},
    "record_keys": {"codec", "partitions", "schema"},
    "per_table": {"schema"},
    "found": {"codec", "images", "kernel", "old_collations", "schema"},
    "rows": {"codec", "images", "old_collations", "schema"},
    "history": {
        "by_id", "ddl_actions", "ddl_job", "folded", "job", "old_collations", "rename_statement", "schema", "tso",
    },
    "packed_jobs": {"job", "schema"},
    "job_versions": {"ddl_actions", "ddl_job", "history", "job", "schema", "tso"},
    "pd": {"backoff", "codec", "lean", "pb", "rpc", "tso"},
    "tikv": {"backoff", "codec", "pb", "pd", "rpc", "schema", "tso"},
    "etcd": {"backoff", "lean", "pb", "rpc"},
    "pumps": {"etcd", "lean", "pb", "pd", "rpc", "tso", "window_schema"},
    "__init__": {"etcd", "pd", "pumps", "rpc", "tikv"},
}  # fmt: skip
"""The same of `upstream`."""
RELAY = {
    "errors": set(),
    "url": {"errors"},
    "storage": {"errors", "url"},
    "format_version": {"errors", "storage"},
    "numbered": {"errors", "format_version", "storage"},
    "failures": {"storage"},
    "ownership": {"format_version"},
    "appointments": {"errors", "format_version", "storage"},
    "audit": {"numbered", "storage"},
    "control": {"errors", "format_version", "numbered", "storage"},
    "decisions": {"errors", "format_version", "storage"},
    "counted": set(),
    "part_schema": set(),
    "row_groups": {"counted", "errors", "part_schema", "storage"},
    "part": {"counted", "errors", "part_schema", "row_groups", "storage"},
    "quality": {"storage"},
    "remembered": {"storage"},
    "known_members": set(),
    "known_pumps": {"format_version", "numbered", "storage"},
    "records_text": {"known_members"},
    "sealed": {"format_version", "known_members"},
    "schema_snapshots": {"format_version", "sealed", "storage"},
    "window": {"known_members", "part", "sealed"},
    "window_log": {"decisions", "storage", "window"},
    "places": {"errors", "ownership", "storage", "url"},
    "log": {
        "appointments",
        "control",
        "decisions",
        "errors",
        "failures",
        "format_version",
        "known_pumps",
        "ownership",
        "part",
        "places",
        "remembered",
        "storage",
        "window",
    },
    "turn": {"log"},
    "bell": set(),
    "archive": {
        "decisions",
        "errors",
        "format_version",
        "numbered",
        "part",
        "part_schema",
        "places",
        "row_groups",
        "sealed",
        "storage",
        "window",
    },
    "retention": {"errors", "format_version", "log"},
    "jobs": {"errors", "format_version", "numbered", "storage"},
    "verified": {"errors", "log", "numbered"},
    "measures": {"log", "numbered"},
    "__init__": {
        "appointments",
        "control",
        "decisions",
        "errors",
        "failures",
        "known_members",
        "log",
        "ownership",
        "part",
        "part_schema",
        "records_text",
        "sealed",
        "url",
        "window",
        "window_log",
    },
}
"""The same of `relay`; all may import upstream and errors."""
INNER = {"etl": ETL, "pump_service": PUMP_SERVICE, "relay": RELAY, "upstream": UPSTREAM}


def modules(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.py") if "_pb" not in path.parts)


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """The dotted names that a module imports, also in functions and for type checking."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def inner_room(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[1]


def inner_imports(folder: str, room: str) -> Iterator[str]:
    """The rooms of a folder that one of them imports, itself among them; a folder's door is its room `__init__`."""
    for path in modules(ROOT / folder):
        if inner_room(path) == room:
            for name in imported(path):
                parts = name.split(".")
                if parts[0] == folder and len(parts) > 1:
                    yield parts[1] if parts[1] in INNER[folder] else "__init__"


def test_the_tables_hold_every_room_and_no_other():
    folders = {path.parent.name for path in ROOT.glob("[a-z]*/*.py")}
    assert folders - {"tests", "docs"} == set(ROOMS)
    for folder, rooms in INNER.items():
        assert {inner_room(path) for path in modules(ROOT / folder)} == set(rooms) - {"_pb"}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_what_the_architecture_allows(room: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(ROOT / room)
        for name in imported(path)
        if name.split(".")[0] in set(ROOMS) - {room} - ROOMS[room]
    }
    assert not wrong


@pytest.mark.parametrize(("folder", "room"), [(folder, room) for folder in INNER for room in sorted(INNER[folder])])
def test_an_inner_room_imports_only_what_the_architecture_allows(folder: str, room: str) -> None:
    used = set(inner_imports(folder, room)) - {room}
    allowed = INNER[folder][room]
    assert used - allowed == set(), "not allowed"
    assert allowed - used == set(), "allowed, but not used: leave it out of the table"


@pytest.mark.parametrize("folder", sorted(INNER))
def test_no_inner_room_imports_itself_by_way_of_others(folder: str) -> None:
    assert list(graphlib.TopologicalSorter(INNER[folder]).static_order())  # raises CycleError


def test_no_module_imports_itself_by_way_of_others():
    paths = {module_name(path): path for room in ROOMS for path in modules(ROOT / room)}
    doors = {name.removesuffix(".__init__"): name for name in paths}
    graph = {}
    for name, path in paths.items():
        found = (doors.get(one) or doors.get(one.rpartition(".")[0]) for one in imported(path))
        graph[name] = {one for one in found if one} - {name}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


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


def test_no_module_of_the_tests_is_called_as_a_room() -> None:
    """A test's folder comes first in sys.path, which processes that it starts may get before they import a room."""
    assert [path for path in (ROOT / "tests").rglob("*.py") if path.stem in ROOMS] == []


def test_dag_files_wire_and_do_not_think():
    for path in (ROOT / "dags").glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, f"{path.name} is too long for a DAG file"
