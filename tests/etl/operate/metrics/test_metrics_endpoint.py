"""What Prometheus is told: the original's names and Sluice's own, from an endpoint that outlives
the tasks.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.etl import operate
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.operate.metrics import MetricsEndpoint, MetricsPusher, PipelineCollector
from sluice.etl.settings import Settings
from sluice.etl.settings.pipelines import NamedPipeline, Pipelines
from sluice.relay import Failure, RelayLog
from sluice.relay.jobs import Jobs, WriteScope
from sluice.relay.measures import LAND, CounterRecorder, CounterStore, source_of
from sluice.relay.quality import FailedExpectation, QualityRun, QualityRuns
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun, VerifierStatus
from sluice.tidb import tso
from tests.relay.relaykit import window

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def ago(milliseconds: int) -> int:
    return tso.compose(time.time_ns() // 1_000_000 - milliseconds)


def gatherer(config: Path, **more: int) -> PipelineCollector:
    return PipelineCollector(
        Pipelines({"shop": NamedPipeline("shop", config)}), fresh_s=0.0, patience_s=60.0, **more
    )


def parsed(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def of_shop(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted({"pipeline": "shop", **labels}.items()))]


def work(relay: RelayLog, settings: Settings, times: int = 1) -> None:
    """A process that lands, and one that applies, each for so many windows."""
    land = CounterRecorder(CounterStore(relay), LAND, every_s=3600)
    apply = CounterRecorder(
        CounterStore(relay), source_of(downstream_name(settings.target)), every_s=3600
    )
    for _ in range(times):
        land.count(
            {"windows": 1, "transactions": 4, "changes": 9, "bytes": 1000},
            {"reach": 0.3, "window": 0.2},
        )
        apply.count(
            {
                "commits": 1,
                "changes": 9,
                "inserts": 5,
                "updates": 3,
                "deletes": 1,
                "ddls": 1,
                "rows": 6,
            },
            {"execute": 0.02, "send": 0.01, "commit": 0.005, "ddl": 0.001, "delay": 1.5},
        )
        apply.changed({"shop.orders": (5, 3, 1), "shop.items": (1, 0, 0)}, 77)
    apply.count({"retries": 1, "error.DownstreamError": 1})
    land.close()
    apply.close()


def test_the_originals_metrics_have_its_names_labels_and_units(
    files_config: Path, files_settings: Settings, files_relay: RelayLog
) -> None:
    files_relay.commit(window(ago(9_000), hi := ago(2_000)))
    (Path(files_settings.file.dir) / "savepoint").write_text(f"commitTS = {hi}\n")
    work(files_relay, files_settings, 2)
    found = parsed(gatherer(files_config).text())
    assert of_shop(found, "binlog_drainer_checkpoint_tso") == tso.physical_ms(hi)
    events = {
        kind: of_shop(found, "binlog_drainer_event", type=kind)
        for kind in ("Insert", "Update", "Delete", "DDL")
    }
    assert events == {"Insert": 10, "Update": 6, "Delete": 2, "DDL": 2}
    assert of_shop(found, "binlog_drainer_event", type="savepoint") == 2
    assert of_shop(found, "binlog_drainer_ddl_jobs_total") == 2
    assert of_shop(found, "binlog_drainer_error_count", type="DownstreamError") == 1
    assert of_shop(found, "binlog_drainer_execute_duration_time_count") == 2
    assert of_shop(found, "binlog_drainer_execute_duration_time_bucket", le="0.032") == 2
    assert of_shop(found, "binlog_drainer_execute_duration_time_bucket", le="0.016") == 0
    assert of_shop(found, "binlog_drainer_query_duration_time_sum", type="exec") == pytest.approx(
        0.02
    )
    assert of_shop(found, "binlog_drainer_binlog_reach_duration_time_count", nodeID="all") == 2
    assert of_shop(found, "binlog_drainer_checkpoint_delay_seconds_sum") == pytest.approx(3.0)
    assert of_shop(found, "binlog_drainer_read_binlog_size_sum", nodeID="all") == 2000


def test_since_when_verification_has_rows_to_compare_and_can_compare_none_is_a_metric_while_it_runs(
    files_config: Path, files_relay: RelayLog
) -> None:
    now = time.time_ns() // 1_000_000
    notes = Verifications(files_relay)
    series = "sluice_verification_stalled_seconds"
    notes.save_status(VerifierStatus(now - 5_000, 0, 700))
    assert of_shop(parsed(gatherer(files_config).text()), series) == 0
    notes.save_status(VerifierStatus(now - 5_000, now - 90_000, 700, "TiDB doesn't answer"))
    found = parsed(gatherer(files_config).text())
    assert of_shop(found, series) >= 90
    assert of_shop(found, "sluice_verification_rows_total") == 700
    notes.save_status(VerifierStatus(now - 4_000_000, now - 9_000_000, 700))
    assert (series, (("pipeline", "shop"),)) not in parsed(gatherer(files_config).text()), (
        "it is switched off"
    )


def test_counters_go_on_over_task_changes_and_a_new_endpoint(
    files_config: Path, files_settings: Settings, files_relay: RelayLog
) -> None:
    seen = []
    for _ in range(3):
        work(files_relay, files_settings)
        seen.append(
            of_shop(parsed(gatherer(files_config).text()), "sluice_changes_total", stage="applied")
        )
    assert seen == [9, 18, 27]


def test_what_waits_for_people_and_who_does_not_answer_are_metrics(
    files_config: Path, files_settings: Settings, files_relay: RelayLog, etcd_url: str
) -> None:
    files_relay.commit(window(ago(9_000), hi := ago(2_000)))
    operate.pause(files_settings, operate.LAND)
    operate.skip_transaction(files_settings, hi + 1)
    files_relay.failures.note(Failure("apply", "said", "way out", 1))
    Jobs(files_relay.storage).create("restore", {}, WriteScope("db"), "ann")
    # nobody answers there
    files_config.write_text(files_config.read_text().replace(etcd_url, "http://127.0.0.1:1"))
    found = parsed(gatherer(files_config).text())
    assert of_shop(found, "sluice_part_state", part="landing", state="paused") == 1
    assert of_shop(found, "sluice_part_state", part="landing", state="works") == 0
    assert of_shop(found, "sluice_part_state", part="downstream", state="stopped") == 1
    assert of_shop(found, "sluice_overrides_waiting") == 1
    assert of_shop(found, "sluice_task_stopped", task="apply") == 1
    assert of_shop(found, "sluice_jobs", kind="restore", state="planned") == 1
    assert of_shop(found, "sluice_answers", party="upstream") == 0
    assert of_shop(found, "sluice_answers", party="downstream") == 1


def test_what_is_known_of_equality_and_quality_is_a_metric(
    files_config: Path, files_relay: RelayLog
) -> None:
    now = time.time_ns() // 1_000_000
    tables = (
        TableVerified("a.b", 1, now - 50_000, 10, 10, 3, "upstream", "verify-1"),
        TableVerified("a.c", 1, now, 10, 10, 0, "upstream", "verify-1", "no key"),
    )
    Verifications(files_relay).note(VerifiedRun("verify-1", 1, now, 2.0, "upstream", tables))
    failure = FailedExpectation("not null", "a", "warn", "3 rows")
    run = QualityRun(
        "r", now, "a.b", "downstream", "warned", 5, 1, "warn", 1.0, failures=(failure,)
    )
    QualityRuns(files_relay.storage).note(f"{now}-0123456789ab", [run], keep=5)
    found = parsed(gatherer(files_config).text())
    assert of_shop(found, "sluice_verification_differences") == 3
    assert of_shop(found, "sluice_verification_problems") == 1
    assert ("sluice_verification_stalled_seconds", (("pipeline", "shop"),)) not in found
    assert of_shop(found, "sluice_verified_tables") == 2
    assert of_shop(found, "sluice_verification_age_seconds") >= 50
    assert of_shop(found, "sluice_quality_failed", severity="warn") == 1
    assert of_shop(found, "sluice_quality_failed", severity="pause") == 0
    assert of_shop(found, "sluice_quality_age_seconds") >= 0


def test_only_the_tables_with_the_most_changes_have_counters_of_their_own(
    files_config: Path, files_settings: Settings, files_relay: RelayLog
) -> None:
    work(files_relay, files_settings)
    found = parsed(gatherer(files_config, tables=1).text())
    assert of_shop(found, "sluice_table_rows_total", table="shop.orders", kind="update") == 3
    assert not any(("table", "shop.items") in labels for _, labels in found)
    assert not any(
        name == "sluice_table_rows_total" for name, _ in parsed(gatherer(files_config).text())
    )


def test_a_pipeline_whose_settings_are_broken_is_told_of_and_the_others_are_shown(
    files_config: Path, files_settings: Settings, files_relay: RelayLog, tmp_path: Path
) -> None:
    (broken := tmp_path / "broken.toml").write_text("[files_relay\n")
    both = Pipelines(
        {"shop": NamedPipeline("shop", files_config), "broken": NamedPipeline("broken", broken)}
    )
    found = parsed(PipelineCollector(both, patience_s=60.0).text())
    assert of_shop(found, "sluice_pipeline_readable") == 1
    assert found["sluice_pipeline_readable", (("pipeline", "broken"),)] == 0
    assert of_shop(found, "sluice_refused") == 0


@pytest.fixture
def endpoint(files_config: Path) -> Iterator[MetricsEndpoint]:
    served = MetricsEndpoint(gatherer(files_config), "127.0.0.1", 0)
    yield served
    served.close()


def test_connections_that_ask_nothing_take_a_bounded_number_of_threads(
    endpoint: MetricsEndpoint,
) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(endpoint.address, 60) for _ in range(50)]
    closed = [sock for sock in silent[16:] if sock.recv(1) == b""]
    assert len(closed) == 34
    assert threading.active_count() <= before + 16
    for sock in silent:
        sock.close()


def test_the_endpoint_serves_the_text_format_and_nothing_else(endpoint: MetricsEndpoint) -> None:
    host, port = endpoint.address
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert of_shop(parsed(answer.read()), "sluice_pipeline_readable") == 1
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{host}:{port}/../etc/passwd", timeout=60)


def test_a_gateway_gets_them_under_the_originals_job_and_one_that_is_away_stops_nothing(
    files_config: Path,
) -> None:
    came, got = Event(), []

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(202)
            self.end_headers()
            came.set()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Gateway)
    Thread(target=server.serve_forever, daemon=True).start()
    away = MetricsPusher(gatherer(files_config), "127.0.0.1:1", "me:1", every_s=0.01)
    pusher = MetricsPusher(
        gatherer(files_config), f"127.0.0.1:{server.server_address[1]}", "me:1", every_s=3600
    )
    try:
        assert came.wait(60)
    finally:
        pusher.close()
        away.close()
        server.shutdown()
        server.server_close()
    path, text = got[0]
    assert (
        path == "/metrics/job/binlog/instance/me:1" or path == "/metrics/job/binlog/instance/me%3A1"
    )
    assert b"binlog_drainer_event" in text
