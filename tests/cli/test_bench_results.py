"""What `sluice bench` keeps, and two versions side by side."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sluice.bench import compare
from sluice.cli import group
from sluice.pump_service.grpc_fastpath import FastPathLimits
from tests.pump_service.pumpkit import CLUSTER
from tests.pump_service.served_lane import ServedLane


def run_of(rate, cpu, **other):
    about = {
        "benchmark": "pump",
        "at": "2026-01-01T00:00:00+00:00",
        "commit": "abc",
        "load": [0.1, 0.1, 0.1],
    }
    found = {"cases": [{"case": "1x128", "records_per_s": rate}], "cpu": {"pump": cpu}, "ok": True}
    return about | {"environment": {"machine": "one"}, "found": found} | other


def written(folder, *runs):
    folder.mkdir()
    for number, run in enumerate(runs):
        (folder / f"{number}.json").write_text(json.dumps(run))
    return folder


def test_figures_are_compared_by_name_with_their_noise():
    before = [run_of(1000, 5.0), run_of(1100, 6.0), run_of(1050, 5.5)]
    after = [run_of(2100, 5.2), run_of(2000, 6.1), run_of(2200, 5.4)]
    rate, cpu = compare.compare(before, after)
    assert (rate.name, rate.ratio, rate.verdict) == ("cases[1x128].records_per_s", 2.0, "differs")
    assert (cpu.name, cpu.verdict) == ("cpu.pump", "noise")


def test_one_run_of_each_proves_nothing():
    assert [each.verdict for each in compare.compare([run_of(1, 1)], [run_of(9, 9)])] == [
        "one run",
        "one run",
    ]


def test_another_machine_or_a_busy_one_is_named():
    found = compare.differences(
        [run_of(1, 1)], [run_of(1, 1, environment={"machine": "two"}, load=[12.0, 1, 1])]
    )
    assert found == [
        "not all runs have the same environment",
        "the load was up to 12 when a run ended: compare CPU time, not rates",
    ]


def test_two_folders_are_shown_side_by_side(tmp_path, capsys):
    before = written(tmp_path / "before", run_of(1000, 5.0), run_of(1100, 5.0))
    after = written(tmp_path / "after", run_of(500, 5.0), run_of(550, 5.0))
    assert compare.main([str(before), str(after), "--only", "records"]) == 0
    shown = capsys.readouterr().out
    assert "cases[1x128].records_per_s" in shown and "0.50" in shown and "differs" in shown
    assert "cpu.pump" not in shown


@pytest.mark.parametrize(
    ("content", "said"),
    [({}, "no result of `sluice bench`"), (None, "no results")],
    ids=["another file", "nothing"],
)
def test_what_is_no_result_is_refused_by_name(tmp_path, capsys, content, said):
    folder = written(tmp_path / "odd", *([] if content is None else [content]))
    assert compare.main([str(folder), str(folder)]) == 2
    assert said in capsys.readouterr().err


def test_a_pump_that_runs_already_is_measured_and_the_result_is_kept(tmp_path):
    lane = ServedLane(tmp_path / "data", FastPathLimits())
    try:
        host, port = lane.client.sock.getpeername()
        at = ["--address", f"{host}:{port}", "--cluster-id", str(CLUSTER)]
        arguments = [
            "--home",
            str(tmp_path),
            "bench",
            "pump",
            *at,
            "--case",
            "1x128",
            "--seconds",
            "0.2",
            "--json",
        ]
        result = CliRunner().invoke(group, arguments)
    finally:
        lane.close()
    assert result.exit_code == 0, result.output
    (kept,) = (tmp_path / "bench" / "results").glob("pump-*.json")
    whole = json.loads(kept.read_text())
    assert whole == json.loads(result.stdout)
    (case,) = whole["found"]["cases"]
    assert case["case"] == "1x128" and case["records"] > 0 and case["errors"] == 0
    assert whole["commit"] and "cores" in whole["environment"]["machine"]


def test_the_load_on_another_pump_wants_its_cluster(tmp_path):
    result = CliRunner().invoke(group, ["bench", "pump", "--address", "h:1"])
    assert result.exit_code == 2 and "belong together" in result.output
