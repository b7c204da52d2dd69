"""Each alert fires when what it is about happens, and stops when that is over."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml

from sluice.cli import group

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "monitoring" / "rules.yml"
PUMP = ROOT / "docs" / "reference" / "pump.md"
RUNBOOK = ROOT / "docs" / "how-to" / "runbook" / "alerts.md"
MINUTES = 80
"""Of each of three phases: all is well, it isn't, and it is again."""
SHOP = 'pipeline="shop"'
BATCHES = 'binlog_pump_storage_write_binlog_duration_time_bucket{instance="p1", type="batch"'
PULLS = 'binlog_pump_rpc_duration_seconds_count{instance="p1", method="PullBinlogs"'
WRITES = 'binlog_pump_rpc_duration_seconds_bucket{instance="p1", method="WriteBinlog"'


class Case(NamedTuple):
    """A series whose value is `well`, then `ill`, then `well` again; None: the series isn't there.

    `grows`: what is given is how much a counter grows in a minute.
    """

    series: str
    well: float | None
    ill: float | None
    grows: bool = False


CASES: dict[str, list[Case]] = {
    "SluiceLag": [Case(f"sluice_lag_seconds{{{SHOP}}}", 3, 400)],
    "SluiceTaskStopped": [Case(f'sluice_task_stopped{{{SHOP}, task="apply"}}', None, 1)],
    "SluiceRefused": [Case(f"sluice_refused{{{SHOP}}}", 0, 1)],
    "SluiceNoTask": [Case(f'sluice_silent_seconds{{{SHOP}, task="land"}}', 9, 900)],
    "SluiceNoAnswer": [Case(f'sluice_answers{{{SHOP}, party="downstream"}}', 1, 0)],
    "SluiceUnreadable": [Case(f"sluice_pipeline_readable{{{SHOP}}}", 1, 0)],
    "SluicePausedLong": [
        Case(f'sluice_part_state{{{SHOP}, part="landing", state="paused"}}', 0, 1)
    ],
    "SluiceRetries": [Case(f'sluice_retries_total{{{SHOP}, stage="applied"}}', 0, 6, grows=True)],
    "SluiceTopicErrors": [
        Case(f'sluice_topic_errors_total{{{SHOP}, topic="orders"}}', 0, 1, grows=True)
    ],
    "SluiceOtherWriters": [Case(f"sluice_other_writers_total{{{SHOP}}}", 0, 1, grows=True)],
    "SluiceRowsWithoutBinlog": [
        Case(f"sluice_jobs_without_binlog_total{{{SHOP}}}", 0, 1, grows=True)
    ],
    "SluiceOverrideWaits": [Case(f"sluice_overrides_waiting{{{SHOP}}}", 0, 1)],
    "SluiceDifferences": [Case(f"sluice_verification_differences{{{SHOP}}}", 0, 2)],
    "SluiceNotVerified": [Case(f"sluice_verification_age_seconds{{{SHOP}}}", 86_400, 800_000)],
    "SluiceVerificationStalled": [Case(f"sluice_verification_stalled_seconds{{{SHOP}}}", 0, 2400)],
    "SluiceQualityFailed": [
        Case(f'sluice_quality_failed{{{SHOP}, severity="fail"}}', 0, 1),
        Case(f'sluice_quality_failed{{{SHOP}, severity="warn"}}', 5, 5),
    ],
    "SluiceArchiveLate": [Case(f"sluice_archive_lag_seconds{{{SHOP}}}", 90, 5000)],
    "SluiceArchiveDamaged": [Case(f"sluice_archive_faults{{{SHOP}}}", 0, 1)],
    "SluiceDiskFull": [Case(f"sluice_disk_full_days{{{SHOP}}}", 90, 2)],
    "SluiceJobStopped": [Case(f'sluice_jobs{{{SHOP}, kind="restore", state="failed"}}', None, 1)],
    "SluicePumpLate": [Case(f'sluice_pump_state{{{SHOP}, nodeID="p1", state="waits"}}', 0, 1)],
    "PumpDown": [Case('up{job="pump", instance="p1"}', 1, 0)],
    "PumpFailed": [Case('binlog_pump_storage_failed{instance="p1"}', 0, 1)],
    "PumpNotWritable": [Case('binlog_pump_storage_writable{instance="p1"}', 1, 0)],
    "PumpDiskLow": [
        Case('binlog_pump_storage_storage_size_bytes{instance="p1", type="available"}', 9e11, 1e9)
    ],
    "PumpErrors": [
        Case('binlog_pump_storage_error_count{instance="p1", type="read_value"}', 0, 1, grows=True)
    ],
    "PumpWriteSlow": [
        Case(f'{WRITES}, le="1"}}', 60, 0, grows=True),
        Case(f'{WRITES}, le="2"}}', 60, 60, grows=True),
        Case(f'{WRITES}, le="+Inf"}}', 60, 60, grows=True),
    ],
    "PumpCaptureFailed": [Case('binlog_pump_capture_failed{instance="p1"}', 0, 1)],
    "PumpCaptureDiffers": [
        Case('binlog_pump_capture_replica_differs{instance="p2",pump="p1"}', 0, 1)
    ],
    "PumpCaptureLate": [
        Case('binlog_pump_capture_frontier_ts{instance="p2"}', 1e9, -1e9),
        Case('binlog_pump_capture_failed{instance="p2"}', 0, 0),
    ],
    "PumpVerdictMissing": [Case('binlog_pump_storage_oldest_pending_ts{instance="p1"}', 0, 1)],
    "PumpReaderBehind": [
        Case(
            'binlog_pump_detected_drainer_binlog_purge_count{instance="p1", id="drainer-1"}',
            0,
            1,
            grows=True,
        )
    ],
    "PumpBinlogsRefused": [Case('binlog_pump_loss_binlog_count{instance="p1"}', 0, 1, grows=True)],
    "PumpCallsFail": [
        Case(f'{PULLS}, label="fail"}}', 0, 1, grows=True),
        Case(f'{PULLS}, label="succ"}}', 9, 9, grows=True),
    ],
    "PumpBatchSlow": [
        Case(f'{BATCHES}, le="1"}}', 60, 0, grows=True),
        Case(f'{BATCHES}, le="2"}}', 60, 60, grows=True),
        Case(f'{BATCHES}, le="+Inf"}}', 60, 60, grows=True),
    ],
    "PumpCommitTsStands": [
        Case('binlog_pump_storage_max_commit_ts{instance="p1"}', 60_000, 0, grows=True)
    ],
    # promtool's clock begins with 0
    "PumpGcLate": [Case('binlog_pump_storage_gc_ts{instance="p1"}', 0, -1e9)],
    "PumpAsksTikv": [
        Case('binlog_pump_storage_query_tikv_count{instance="p1"}', 6, 600, grows=True)
    ],
    "PumpIndexSlow": [
        Case('binlog_pump_storage_slow_chaser_count{instance="p1", type="turned_on"}', 3, 4),
        Case('binlog_pump_storage_slow_chaser_count{instance="p1", type="turned_off"}', 3, 3),
        Case('binlog_pump_storage_slow_chaser_count{instance="p1", type="catch_up"}', 9, 9),
    ],
    "PumpBytesSkipped": [
        Case('binlog_pump_storage_skipped_bytes_total{instance="p1"}', 0, 9, grows=True)
    ],
    "PumpLateCommits": [
        Case('binlog_pump_storage_late_commits_total{instance="p1"}', 0, 1, grows=True)
    ],
}
APART = {
    "SluiceLagLong": [Case(f"sluice_lag_seconds{{{SHOP}}}", 3, 4000)],
    "SluiceMetricsGone": [Case('sluice_pipeline_readable{pipeline="a"}', 1, None)],
}
"""These are about series that others are about, too. Together they are tried a second time."""
THEN_TOO = "SluiceLag"
"""Fires with those."""


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def values(case: Case) -> str:
    """As promtool writes series: a number a minute."""
    found: list[float | None] = []
    level = 0.0
    for phase in (case.well, case.ill, case.well):
        for _ in range(MINUTES):
            level += phase or 0.0 if case.grows else 0.0
            found.append(level if case.grows else phase)
    return " ".join(
        "_" if value is None else f"{value:g}" if value < 1e6 else f"{value:.0f}" for value in found
    )


def promtool_test(cases: dict[str, list[Case]], *more: str) -> dict[str, Any]:
    """Nothing at the end of the first phase, all alerts at the end of the second, nothing at the
    end of the third.
    """
    series = [
        {"series": each.series, "values": values(each)}
        for every in cases.values()
        for each in every
    ]
    firing = "count by (alertname) (ALERTS{alertstate='firing'})"
    expected = [
        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted({*cases, *more})
    ]
    return {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{MINUTES - 1}m", "exp_samples": []},
            {"expr": firing, "eval_time": f"{2 * MINUTES - 1}m", "exp_samples": expected},
            {"expr": firing, "eval_time": f"{3 * MINUTES - 1}m", "exp_samples": []},
        ],
    }


def promtool(*arguments: str) -> str:
    return tool("promtool", *arguments)


def tool(name: str, *arguments: str) -> str:
    program = shutil.which(name)
    assert program, f"{name} is missing: bin/setup installs it with Debian's packages"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_alert_is_tried() -> None:
    assert {rule["alert"] for rule in rules()} == CASES.keys() | APART.keys()


def pump_metrics() -> list[tuple[set[str], set[str]]]:
    """Return what each row of the table "Metrics of a pump" names: metrics without prefix, and
    alerts.
    """
    table = PUMP.read_text().split("## Metrics of a pump\n", 1)[1].split("\n## ", 1)[0]
    rows = [
        re.split(r" ?\| ?", line.strip("| "))
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    found = []
    for metric, *_, alert in (row if len(row) == 3 else [*row, ""] for row in rows):
        alerts = set(re.findall(r"`(Pump\w+)`", alert))
        assert alerts or not alert, f"{metric}: no rule is named for: {alert}"
        found.append((set(re.findall(r"`([a-z_]+)", metric)), alerts))
    return found


def test_every_alert_on_a_pump_in_the_operators_table_is_a_rule_on_a_metric_of_its_row() -> None:
    """And every rule on pumps is in the table; that a pump doesn't answer is no metric of its."""
    expressions = {rule["alert"]: rule["expr"] for rule in rules()}
    named = set()
    for metrics, alerts in pump_metrics():
        for alert in alerts:
            expression = expressions[alert]
            assert any(
                re.search(rf"\b(binlog_pump_storage_)?{each}", expression) for each in metrics
            ), alert
        named |= alerts
    assert named == {alert for alert in expressions if alert.startswith("Pump")} - {"PumpDown"}


@pytest.mark.slow
def test_each_alert_fires_when_what_it_is_about_happens_and_stops_when_it_is_over(
    tmp_path: Path,
) -> None:
    tests = [promtool_test(CASES), promtool_test(APART, THEN_TOO)]
    file = tmp_path / "tests.yml"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_rules_and_the_example_configuration_are_what_prometheus_takes() -> None:
    promtool("check", "config", str(ROOT / "monitoring" / "prometheus.yml"))
    tool("amtool", "check-config", str(ROOT / "monitoring" / "alertmanager.yml"))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_says_how_grave_it_is_and_has_an_entry_in_the_runbook_that_says_what_to_type(
    rule: dict[str, Any],
) -> None:
    alert = rule["alert"]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook"] == f"how-to/runbook/alerts.md#{alert.lower()}"
    entry = re.search(
        rf"^### {alert}\n(.*?)(?=^#|\Z)", RUNBOOK.read_text(), re.DOTALL | re.MULTILINE
    )
    assert entry, f"docs/how-to/runbook/alerts.md has no entry {alert}"
    assert "`" in entry[1], "it says nothing to type"


def test_every_command_that_the_runbook_has_one_type_is_there() -> None:
    typed = re.findall(r"`sluice ([a-z-]+)\s*([a-z-]*)([^`]*)`", RUNBOOK.read_text())
    assert len(typed) > 20
    context = click.Context(group)
    for name, second, rest in typed:
        command = group.get_command(context, name)
        assert command is not None, name
        words = [second] if isinstance(command, click.Group) and second else []
        for word in words:
            found = command.get_command(context, word)  # type: ignore[union-attr]
            assert found is not None, f"{name} {word}"
            command = found
        if command.context_settings.get("ignore_unknown_options"):  # it hands them on
            continue
        known = {option for parameter in command.params for option in parameter.opts}
        options = re.findall(r"--[a-z-]+", f"{second if not words else ''} {rest}")
        assert set(options) <= known, f"sluice {name}: {options}"


def test_what_silences_other_alerts_names_alerts_that_there_are() -> None:
    document = yaml.safe_load((ROOT / "monitoring" / "alertmanager.yml").read_text())
    receivers = {receiver["name"] for receiver in document["receivers"]}
    assert {
        document["route"]["receiver"],
        *(route["receiver"] for route in document["route"]["routes"]),
    } <= receivers
    known = {rule["alert"] for rule in rules()}
    for rule in document["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            assert set(re.findall(r"[A-Z]\w+", matcher)) <= known
