"""Fixtures that several folders of tests share."""

import gc
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.quick_cases import mark_others
from tests.schedule import LongestFirst, in_order

pytest_plugins = (
    "tests.etl.files_pipeline",
    "tests.etl.mariadb_fixture",
    "tests.etl.spark.standalone_fixture",
    "tests.etl.spark_fixture",
    "tests.object_store.fixture",
    "tests.tidb.etcd_fixture",
)

# How fast a machine draws and runs an example says nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
# `make test` tries fewer examples where a test doesn't give a number of its own; `make test-all`
# tries them all.
settings.register_profile("quick", settings.get_profile("any machine"), max_examples=15)


def _generate_messages() -> None:
    """Generate the protobuf modules again where a definition is newer: they are in no commit."""
    tidb = Path(__file__).parent / "tidb"
    made = max((path.stat().st_mtime_ns for path in (tidb / "_pb").glob("*_pb2.py")), default=0)
    if any(path.stat().st_mtime_ns > made for path in (tidb / "proto").glob("*.proto")):
        subprocess.run([sys.executable, "-m", "sluice.tidb.genproto"], cwd=tidb.parent, check=True)


if "PYTEST_XDIST_WORKER" not in os.environ:
    _generate_messages()


def _reaches_the_disk(descriptor: int) -> None:
    """Check the descriptor only, in place of fsync and fdatasync in the tests' own processes.

    Raises what they raise of a wrong descriptor.

    What a process has written outlives its kill -9 without them, and no test pulls the machine's
    plug. Thousands of them were most of the time of the tests that write many small files.
    Programs that tests start call the real ones.
    """
    os.fstat(descriptor)


os.fsync = os.fdatasync = _reaches_the_disk

# Until all is collected: what is imported and collected stays, and looking through it again and
# again finds nothing.
gc.disable()


def pytest_addoption(parser):
    """Let a run's random histories be had again."""
    parser.addoption(
        "--judge-seed",
        type=int,
        default=0,
        help="first seed of tests/judge's new histories; 0: any",
    )


def pytest_configure(config):
    """Draw the run's seed, which workers get with the options."""
    config.option.judge_seed = config.option.judge_seed or random.SystemRandom().randrange(1, 10**9)


def pytest_report_header(config):
    """Name it."""
    return f"new random histories: --judge-seed {config.option.judge_seed}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Schedule by file, in an order of its own."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before `-m` looks for the marks
def pytest_collection_modifyitems(config, items):
    """Mark cases that are left out; for workers, sort by the order in which they get files."""
    mark_others(items, whole_tests=not any("[" in argument for argument in config.args))
    if hasattr(config, "workerinput"):
        place = in_order(item.nodeid.split("::", 1)[0] for item in items)
        items.sort(key=lambda item: place[item.nodeid.split("::", 1)[0]])


def pytest_collection_finish(session):
    """Freeze what thousands of tests are made of, in workers.

    It stays to the end, so no collection needs to look at it.
    """
    if hasattr(session.config, "workerinput"):
        gc.collect()
        gc.freeze()
    gc.enable()
