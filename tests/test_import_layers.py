"""Packages import each other only as docs/explanation/architecture.md says, and by public names."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ANYTHING = {
    "dags",
    "expectations",
    "pump_service",
    "etl",
    "relay",
    "tidb",
    "errors",
    "devstack",
    "cli",
    "bench",
    "pages",
}
PACKAGES = {
    "airflow": {"errors", "etl", "expectations", "pages", "relay", "tidb"},
    "dags": {"airflow", "etl"},
    "expectations": {"errors", "etl", "relay", "tidb"},
    "pages": {"errors", "etl", "expectations", "relay"},
    "plugins": {"airflow", "errors", "etl", "pages"},
    "pump_service": {"errors", "tidb"},
    "etl": {"errors", "relay", "tidb"},
    "relay": {"errors", "tidb"},
    "spark": {"errors", "etl", "relay", "tidb"},
    "tidb": {"errors"},
    "errors": set(),
    "devstack": ANYTHING - {"cli", "expectations"},
    "cli": ANYTHING,
    "bench": ANYTHING - {"expectations"},
    "monitoring": set(),
    "deploy": set(),
}
"""What each may import of `sluice`."""
ETL = {
    "cached_value": set(),
    "display_units": set(),
    "http_endpoint": set(),
    "lazy_exports": set(),
    "retry": set(),
    "changes": {"lazy_exports"},
    "settings": {"changes", "lazy_exports"},
    "upstream_clock": {"cached_value", "display_units", "settings"},
    "spark": {"retry", "settings"},
    "downstream": {"changes", "display_units", "lazy_exports", "settings"},
    "landing": {
        "changes",
        "downstream",
        "lazy_exports",
        "retry",
        "settings",
        "spark",
        "upstream_clock",
    },
    "apply": {
        "changes",
        "downstream",
        "lazy_exports",
        "retry",
        "settings",
        "spark",
        "upstream_clock",
    },
    "copy": {
        "changes",
        "display_units",
        "downstream",
        "landing",
        "lazy_exports",
        "retry",
        "settings",
        "spark",
    },
    "history": {
        "cached_value",
        "changes",
        "copy",
        "display_units",
        "downstream",
        "lazy_exports",
        "retry",
        "settings",
        "spark",
    },
    "restore": {
        "apply",
        "changes",
        "copy",
        "display_units",
        "downstream",
        "history",
        "lazy_exports",
        "settings",
        "spark",
    },
    "verify": {
        "apply",
        "changes",
        "copy",
        "display_units",
        "downstream",
        "history",
        "lazy_exports",
        "retry",
        "settings",
        "spark",
    },
    "operate": {
        "cached_value",
        "changes",
        "copy",
        "display_units",
        "downstream",
        "history",
        "http_endpoint",
        "landing",
        "lazy_exports",
        "settings",
        "spark",
        "upstream_clock",
    },
    "tasks": {
        "apply",
        "copy",
        "display_units",
        "history",
        "http_endpoint",
        "landing",
        "restore",
        "retry",
        "settings",
        "spark",
        "upstream_clock",
        "verify",
    },
    "__init__": {"apply", "landing", "lazy_exports", "settings"},
}
"""What each room of `etl` may import of the others, from the lowest up; all may import relay and
tidb.
"""
PUMP_SERVICE = {
    "__init__": {"command", "usage"},
    "__main__": {"__init__"},
    "capture": {"store"},
    "calls": {"cluster", "grpc_fastpath", "kernel", "metrics", "store"},
    "cluster": {"kernel", "store"},
    "command": {"config", "listener", "process_limits", "server", "serving", "share_holder"},
    "process_limits": set(),
    "config": {"store"},
    "grpc_fastpath": {"cluster", "config", "ingest", "kernel", "store"},
    "histogram": set(),
    "http": {"config", "metrics"},
    "ingest": {"cluster", "metrics", "store"},
    "kernel": set(),
    "listener": {"config", "grpc_fastpath"},
    "maintenance": {"cluster", "config", "ingest", "metrics", "store"},
    "metrics": {"capture", "histogram", "store"},
    "server": {
        "calls",
        "capture",
        "cluster",
        "config",
        "http",
        "ingest",
        "listener",
        "maintenance",
        "metrics",
        "serving",
        "store",
    },
    "serving": {"calls", "config", "grpc_fastpath", "http", "ingest", "listener"},
    "share_holder": {"config"},
    "store": {"histogram", "kernel"},
    "usage": set(),
}
"""The same of `pump_service`; all may import tidb."""
TIDB = {
    "_pb": set(),
    "__init__": {"etcd", "pd", "pumps", "rpc", "tikv"},
    "backoff": set(),
    "binlog_kinds": set(),
    "build_native": set(),
    "codec": {"column_types", "schema"},
    "column_types": set(),
    "columns": {"column_types"},
    "compact_job_list": {"job", "schema"},
    "conversion": {"codec", "column_types", "schema"},
    "ddl_actions": set(),
    "ddl_job": {"ddl_actions", "folded", "id_maps", "schema"},
    "ddl_schema_versions": {"ddl_actions", "ddl_job", "history", "job", "schema", "tso"},
    "etcd": {"backoff", "grpc_lite", "pb", "rpc"},
    "folded": set(),
    "genproto": set(),
    "grpc_lite": {"rpc"},
    "history": {
        "ddl_actions",
        "ddl_job",
        "folded",
        "id_maps",
        "job",
        "old_collations",
        "schema",
        "tso",
    },
    "id_maps": {"schema"},
    "job": {"ddl_actions", "schema"},
    "kernel": {"native"},
    "moments": {"tso"},
    "native": set(),
    "native_images": {"codec", "kernel", "old_collations", "row_images", "schema"},
    "old_collations": {"codec", "column_types", "schema"},
    "partition_bounds": set(),
    "partition_expression": {"folded", "partition_bounds", "schema"},
    "partitions": {"folded", "partition_bounds", "partition_expression", "schema"},
    "pb": {"_pb"},
    "pb_grpc": {"_pb"},
    "pd": {"backoff", "codec", "grpc_lite", "pb", "rpc", "tso"},
    "pumps": {"etcd", "grpc_lite", "pb", "pd", "rpc", "tso", "window_schema"},
    "record_keys": {"codec", "partitions", "schema"},
    "row_images": set(),
    "row_walk": {"codec", "schema"},
    "rows": {"codec", "old_collations", "row_images", "row_walk", "schema"},
    "rpc": set(),
    "schema": {"columns", "table_name"},
    "stored_rows": {"codec", "schema"},
    "table_cache": {"schema"},
    "table_name": set(),
    "table_shares": {"codec", "schema"},
    "tikv": {"backoff", "codec", "grpc_lite", "pb", "pd", "rpc", "schema", "tso"},
    "time_zone": {"conversion", "ddl_job", "tso"},
    "tso": set(),
    "window_schema": set(),
}
"""The same of `tidb`."""
RELAY = {
    "__init__": {
        "aligned_chunks",
        "checksummed",
        "control",
        "errors",
        "failures",
        "json_cache",
        "log",
        "overrides",
        "ownership",
        "part",
        "part_descriptor",
        "record_codec",
        "row_groups",
        "url",
        "window",
        "window_log",
    },
    "aligned_chunks": {"errors", "format_version", "json_codec", "storage"},
    "archive": {
        "checksummed",
        "errors",
        "format_version",
        "json_codec",
        "log_file_writer",
        "overrides",
        "part",
        "part_descriptor",
        "pipeline_folders",
        "row_groups",
        "storage",
        "versioned_document",
        "window",
    },
    "audit": {"json_codec", "storage", "versioned_document"},
    "cached_storage": {"storage"},
    "checksum_writer": set(),
    "checksummed": {"format_version", "json_cache"},
    "control": {"json_codec", "storage", "versioned_document"},
    "errors": set(),
    "failures": {"format_version", "json_codec", "storage"},
    "notices": {"json_codec", "storage", "versioned_document"},
    "format_version": {"errors", "storage"},
    "hour_listings": {"errors", "storage", "url"},
    "jobs": {"errors", "format_version", "json_codec", "storage", "versioned_document"},
    "json_cache": set(),
    "json_codec": {"format_version"},
    "known_pumps": {"json_codec", "storage", "versioned_document"},
    "log": {
        "aligned_chunks",
        "cached_storage",
        "control",
        "errors",
        "failures",
        "format_version",
        "known_pumps",
        "overrides",
        "ownership",
        "part",
        "part_descriptor",
        "pipeline_folders",
        "storage",
        "window",
        "window_chain",
    },
    "log_file_writer": {"checksum_writer", "part_descriptor", "row_groups"},
    "measures": {"log", "versioned_document"},
    "overrides": {"errors", "json_codec", "storage"},
    "ownership": {"json_codec"},
    "part": {"checksum_writer", "errors", "part_descriptor", "row_groups", "storage"},
    "part_descriptor": set(),
    "pipeline_folders": {"errors", "ownership", "storage", "url"},
    "quality": {"json_codec", "storage"},
    "record_codec": {"json_cache"},
    "consumers": {"errors", "format_version", "log"},
    "role_lease": {"log"},
    "row_groups": {"errors", "storage"},
    "schema_snapshots": {"checksummed", "format_version", "storage"},
    "rule_changes": {"json_codec", "storage", "versioned_document"},
    "landed_masks": {"json_codec", "storage", "versioned_document"},
    "service_lease": {"errors", "json_codec", "storage", "versioned_document"},
    "storage": {"errors", "url"},
    "url": {"errors"},
    "verification_log": {"errors", "format_version", "json_codec", "log", "versioned_document"},
    "versioned_document": {"errors", "format_version", "storage"},
    "wakeup": set(),
    "window": {"checksummed", "json_cache", "part_descriptor"},
    "window_chain": {"errors", "format_version", "hour_listings", "part", "storage", "window"},
    "window_log": {"overrides", "storage", "window"},
}
"""The same of `relay`; all may import tidb and errors."""
INNER = {"etl": ETL, "pump_service": PUMP_SERVICE, "relay": RELAY, "tidb": TIDB}


def folder_of(package: str) -> Path:
    """Return the folder at the top, but for `airflow`, which would hide Airflow there."""
    return ROOT / "sluice" / "airflow" if package == "airflow" else ROOT / package


def modules(folder: Path) -> Iterator[Path]:
    if folder.with_suffix(".py").is_file():
        return iter((folder.with_suffix(".py"),))
    return (path for path in folder.rglob("*.py") if "_pb" not in path.parts)


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Return the dotted names below `sluice` that a module imports, also in functions and for type
    checking.
    """
    return tuple(
        name.removeprefix("sluice.") for name in _imported(path) if name.startswith("sluice.")
    )


def statements(text: str) -> Iterator[ast.AST]:
    """Yield the statements of a module at every depth, without what they are made of."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting.extend(getattr(node, block, ()))


def _imported(path: Path) -> Iterator[str]:
    for node in statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("sluice.")


def inner_package(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[1]


def inner_imports(folder: str, package: str) -> Iterator[str]:
    """Yield the inner packages that one imports, itself among them.

    A folder's own names are its `__init__`.
    """
    for path in modules(ROOT / folder):
        if inner_package(path) == package:
            for name in imported(path):
                parts = name.split(".")
                if parts[0] == folder and len(parts) > 1:
                    yield parts[1] if parts[1] in INNER[folder] else "__init__"


def test_the_tables_hold_every_package_and_no_other():
    folders = {path.parent.name for path in ROOT.glob("[a-z]*/*.py")}
    assert folders - {"tests", "docs", "sluice"} | {"airflow", "errors"} == set(PACKAGES)
    for folder, packages in INNER.items():
        assert {inner_package(path) for path in modules(ROOT / folder)} == set(packages) - {"_pb"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_imports_only_what_the_architecture_allows(package: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(folder_of(package))
        for name in imported(path)
        if name.split(".")[0] in set(PACKAGES) - {package} - PACKAGES[package]
    }
    assert not wrong


@pytest.mark.parametrize(
    ("folder", "package"),
    [(folder, package) for folder in INNER for package in sorted(INNER[folder])],
)
def test_an_inner_package_imports_only_what_the_architecture_allows(
    folder: str, package: str
) -> None:
    used = set(inner_imports(folder, package)) - {package}
    allowed = INNER[folder][package]
    assert used - allowed == set(), "not allowed"
    assert allowed - used == set(), "allowed, but not used: leave it out of the table"


@pytest.mark.parametrize("folder", sorted(INNER))
def test_no_inner_package_imports_itself_by_way_of_others(folder: str) -> None:
    assert list(graphlib.TopologicalSorter(INNER[folder]).static_order())  # raises CycleError


def test_no_module_imports_itself_by_way_of_others():
    paths = {
        module_name(path): path for package in PACKAGES for path in modules(folder_of(package))
    }
    doors = {name.removesuffix(".__init__"): name for name in paths}
    graph = {}
    for name, path in paths.items():
        found = (doors.get(one) or doors.get(one.rpartition(".")[0]) for one in imported(path))
        graph[name] = {one for one in found if one} - {name}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_what_begins_with_an_underscore_stays_in_its_folder():
    wrong = set()
    for package in PACKAGES:
        for path in modules(folder_of(package)):
            here = path.relative_to(ROOT).parts[:-1]
            for name in imported(path):
                parts = tuple(name.split("."))
                hidden = next(
                    (i for i, part in enumerate(parts) if part.startswith("_") and part != "_pb"),
                    None,
                )
                if hidden is not None and parts[0] in PACKAGES and parts[:hidden] != here[:hidden]:
                    wrong.add(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_nothing_is_imported_beside_the_package_sluice() -> None:
    """A module that is imported as `etl.…`, too, would be there twice."""
    inside = set(PACKAGES) - {"airflow", "monitoring", "deploy"}
    paths = [
        *(path for package in (*PACKAGES, "tests") for path in modules(folder_of(package))),
        ROOT / "conftest.py",
    ]
    # parsing 1,700 modules takes seconds; ruff allows one module a line
    likely = re.compile(rf"^\s*(?:from|import)\s+(?:{'|'.join(inside)})\b", re.MULTILINE)
    assert not [
        (path, name)
        for path in paths
        if likely.search(path.read_text(encoding="utf-8"))
        for name in _imported(path)
        if name.split(".")[0] in inside
    ]


def test_no_module_of_the_tests_is_called_as_a_package() -> None:
    """A test's folder comes first in sys.path, which processes that it starts may get before they
    import a package.
    """
    assert [path for path in (ROOT / "tests").rglob("*.py") if path.stem in PACKAGES] == []


def test_dag_files_wire_and_do_not_think():
    for path in (ROOT / "dags").glob("*.py"):
        assert len(path.read_text().splitlines()) < 150, f"{path.name} is too long for a DAG file"


def test_the_package_sluice_is_links_to_the_folders_at_the_top():
    # an editor or `sed -i` that follows a link leaves a copy, and two versions of a module
    copies = [path.name for path in (ROOT / "sluice").iterdir() if not path.is_symlink()]
    assert set(copies) <= {"__init__.py", "__pycache__", "airflow"}
