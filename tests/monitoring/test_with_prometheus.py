"""A real Prometheus scrapes a live endpoint.

An alert fires when a task stops, and resolves when it goes on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.operate.metrics import MetricsEndpoint, PipelineCollector
from sluice.etl.settings import load_settings
from sluice.etl.settings.pipelines import NamedPipeline, Pipelines
from sluice.relay import Failure, RelayLog
from sluice.relay.measures import LAND, CounterRecorder, CounterStore

pytestmark = pytest.mark.slow

RULES = Path(__file__).resolve().parents[2] / "monitoring" / "rules.yml"
DEADLINE_S = 180.0


@pytest.fixture
def endpoint(files_config: Path) -> Iterator[MetricsEndpoint]:
    pipelines = Pipelines({"shop": NamedPipeline("shop", files_config)})
    served = MetricsEndpoint(
        PipelineCollector(pipelines, fresh_s=0.0, patience_s=60.0), "127.0.0.1", 0
    )
    yield served
    served.close()


@pytest.fixture
def prometheus(endpoint: MetricsEndpoint, tmp_path: Path) -> Iterator[str]:
    """Its URL.

    The alerts are those of monitoring/, but nothing has to last longer than a second.
    """
    program = shutil.which("prometheus")
    assert program, "prometheus is missing: bin/setup installs Debian's package"
    (tmp_path / "rules.yml").write_text(re.sub(r"for: \w+", "for: 1s", RULES.read_text()))
    host, port = endpoint.address
    document = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": [str(tmp_path / "rules.yml")],
        "scrape_configs": [
            {"job_name": "sluice", "static_configs": [{"targets": [f"{host}:{port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(document))
    log = tmp_path / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/tsdb",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=out,
            stderr=out,
        )
    try:
        found: list[str] = []

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            said = log.read_text()
            found[:] = re.findall(r'msg="Listening on" address=(\S+)', said)
            # until then it answers 503
            return bool(found) and "ready to receive web requests" in said

        eventually(listens, "Prometheus is ready")
        yield f"http://{found[0]}"
    finally:
        process.kill()
        process.wait()


def eventually(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < until, f"not within {DEADLINE_S:.0f} s: {what}"
        time.sleep(0.2)


def ask(url: str, path: str, **query: str) -> Any:
    with urllib.request.urlopen(
        f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=60
    ) as answer:
        return json.load(answer)["data"]


def firing(url: str) -> dict[str, dict[str, Any]]:
    """Alerts that fire, by name."""
    return {
        a["labels"]["alertname"]: a for a in ask(url, "alerts")["alerts"] if a["state"] == "firing"
    }


def test_an_alert_fires_when_a_task_has_stopped_and_resolves_when_it_goes_on(
    prometheus: str, files_config: Path
) -> None:
    relay = RelayLog.open(load_settings(files_config).relay.url)
    for _ in range(2):  # a counter goes on from task to task
        task = CounterRecorder(CounterStore(relay), LAND, every_s=3600)
        task.count({"transactions": 5})
        task.close()
    landed = 'sluice_transactions_total{pipeline="shop", stage="landed"}'

    def counted() -> list[str]:
        return [sample["value"][1] for sample in ask(prometheus, "query", query=landed)["result"]]

    eventually(lambda: counted() == ["10"], "ten transactions are counted")
    assert "SluiceTaskStopped" not in firing(prometheus)
    relay.failures.note(Failure("apply", "table a.b: a row is missing", "copy it again", 1))
    seen: dict[str, dict[str, Any]] = {}
    eventually(
        lambda: "SluiceTaskStopped" in seen or seen.update(firing(prometheus)) is not None,
        "the alert fires",
    )
    alert = seen["SluiceTaskStopped"]
    assert alert["labels"]["pipeline"] == "shop"
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["summary"] == "shop: apply has stopped until somebody acts"
    relay.failures.clear("apply")
    eventually(lambda: "SluiceTaskStopped" not in firing(prometheus), "the alert resolves")
