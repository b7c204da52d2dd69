"""The boards are what their code makes, and boards and alerts query only served metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import Metric

from monitoring import boards
from sluice.etl.operate.metrics.collector import PipelineCollector, families
from sluice.etl.settings.pipelines import Pipelines
from sluice.pump_service.capture.capture import CaptureStatus
from sluice.pump_service.metrics import PumpMetrics
from sluice.pump_service.store import Store, StoreOptions

RULES = Path(__file__).resolve().parents[2] / "monitoring" / "rules.yml"


def served(metrics: Iterable[Metric]) -> Iterator[str]:
    """The names of their series."""
    for metric in metrics:
        match metric.type:
            case "histogram":
                yield from (f"{metric.name}{end}" for end in ("_bucket", "_sum", "_count"))
            case "counter":
                yield from (metric.name, f"{metric.name}_total")
            case _:
                yield metric.name


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All series of a pipeline's endpoint and of a pump."""
    store = Store.open(
        tmp_path_factory.mktemp("pump"), StoreOptions(stop_write_at_available_space=0)
    )
    try:
        pump = PumpMetrics()
        pump.watch_store(store)
        pump.watch_capture(CaptureStatus)
        return {
            *served(families({})),
            *served(PipelineCollector(Pipelines({})).collect()),
            *served(pump.registry.collect()),
        }
    finally:
        store.close()


def asked(expr: str) -> set[str]:
    return set(re.findall(r"\b(?:sluice|binlog)_\w+", re.sub(r'"[^"]*"', "", expr)))


def test_the_boards_are_what_their_code_makes() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in boards.FOLDER.glob("*.json")}
    assert there == boards.texts(), "`.venv/bin/python -m monitoring.boards` makes them anew"


def test_every_query_of_the_boards_asks_for_what_is_served(known: set[str]) -> None:
    queries = [
        expr
        for rows in boards.boards().values()
        for row in rows
        for panel in row.panels
        for expr in panel.queries.values()
    ]
    assert len(queries) > 40
    for expr in queries:
        assert asked(expr), expr
        assert asked(expr) <= known, expr


def test_every_alert_asks_for_what_is_served(known: set[str]) -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert asked(rule["expr"]) <= known, rule


def test_what_the_originals_boards_and_alerts_ask_for_is_served(known: set[str]) -> None:
    """The queries of TiDB Binlog's own: one for each metric that they name."""
    original = """
        binlog_drainer_checkpoint_tso binlog_drainer_pump_position
        binlog_drainer_read_binlog_size_count
        binlog_drainer_binlog_reach_duration_time_bucket binlog_drainer_error_count
        binlog_drainer_event
        binlog_drainer_query_duration_time_bucket binlog_drainer_execute_duration_time_bucket
        binlog_drainer_read_binlog_size_bucket binlog_drainer_ddl_jobs_total
        binlog_drainer_checkpoint_delay_seconds_bucket binlog_pump_storage_storage_size_bytes
        binlog_pump_storage_gc_ts binlog_pump_storage_max_commit_ts
        binlog_pump_rpc_duration_seconds_count binlog_pump_rpc_duration_seconds_bucket
        binlog_pump_storage_write_binlog_size_bucket
        binlog_pump_storage_write_binlog_duration_time_bucket
        binlog_pump_storage_error_count binlog_pump_storage_query_tikv_count
    """
    exact = known | {name.removesuffix("_total") for name in known}
    assert set(original.split()) <= exact
