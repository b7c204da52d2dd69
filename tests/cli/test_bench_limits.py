"""`python -m sluice.bench.limits`: what the machine can do by itself."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from sluice.bench import compare
from sluice.bench.limits import __main__ as limits
from sluice.bench.limits.processor import decoded
from sluice.bench.pump_load import CASES

pytestmark = pytest.mark.slow

PERFORMANCE = Path(__file__).parents[2] / "docs" / "how-to" / "measure.md"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One short run of all parts: its exit code and what it kept."""
    home = tmp_path_factory.mktemp("home")
    code = limits.main(["--home", str(home), "--seconds", "0.01"])
    (kept,) = (home / "bench" / "results").glob("limits-*.json")
    return code, kept, home


def test_every_figure_is_a_number_above_nothing_with_its_unit_and_its_range(measured):
    code, kept, _ = measured
    whole = json.loads(kept.read_text())
    assert code == 0 and whole["benchmark"] == "limits"
    assert whole["commit"] and "cores" in whole["environment"]["machine"]
    median, least, most = (whole["found"][way] for way in ("median", "least", "most"))
    assert median.keys() == least.keys() == most.keys()
    for name, value in median.items():
        assert re.search(r"_(ms|us|us_a_row|gb_per_s|mb_per_s|(records|calls|rows)_per_s)$", name)
        assert 0 < least[name] <= value <= most[name] < math.inf


def test_two_of_them_are_shown_side_by_side(measured, capsys):
    _, kept, _ = measured
    assert compare.main([str(kept), str(kept), "--only", "median"]) == 0
    shown = capsys.readouterr().out
    names = json.loads(kept.read_text())["found"]["median"]
    assert all(f"median.{name} " in shown for name in names) and "1.00" in shown
    assert "least." not in shown


def test_nothing_of_it_is_left_but_the_result_and_logs(measured):
    _, kept, home = measured
    left = {path for path in (home / "bench").rglob("*") if path.is_file() and path != kept}
    assert sum(path.stat().st_size for path in left) < 2**20


def test_each_case_of_the_pumps_benchmark_has_its_limit(measured):
    _, kept, _ = measured
    given = json.loads(kept.read_text())["found"]["median"]
    assert {f"group_commit_{case}_records_per_s" for case in CASES} <= given.keys()


def test_one_part_alone_gives_its_own_figures(tmp_path, capsys):
    assert limits.main(["disk", "--home", str(tmp_path), "--seconds", "0.001"]) == 0
    (kept,) = (tmp_path / "bench" / "results").glob("*.json")
    assert {name.split("_")[0] for name in json.loads(kept.read_text())["found"]["median"]} == {
        "append",
        "group",
    }


def test_a_part_that_there_is_not_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        limits.main(["tape"])
    assert ended.value.code == 2
    assert "tape: there are disk, wire, database, processor" in capsys.readouterr().err


def test_numpy_gives_back_the_rows_that_were_laid_out():
    rng = np.random.default_rng(2)
    rows = np.zeros(50, np.dtype([("id", "<i8"), ("k", "<i4"), ("c", "V120"), ("pad", "V60")]))
    rows["id"], rows["k"] = rng.integers(-(2**62), 2**62, 50), rng.integers(-(2**30), 2**30, 50)
    rows["c"], rows["pad"] = (
        rng.integers(0, 256, 50 * width, np.uint8).view(f"V{width}") for width in (120, 60)
    )
    order = rng.permutation(50)
    found = decoded(rows.view(np.uint8), order * rows.itemsize)
    for column, name in zip(found, rows.dtype.names, strict=True):
        assert column.tobytes() == rows[order][name].tobytes()


def test_every_figure_of_it_that_the_document_names_is_one_that_it_gives(measured):
    _, kept, _ = measured
    what = "append|group|round|grpc|load|decode|lz4|zstd|copy|python"
    pattern = rf"`((?:{what})_\w+_(?:ms|us|per_s|a_row))`"
    named = set(re.findall(pattern, PERFORMANCE.read_text(encoding="utf-8")))
    given = json.loads(kept.read_text())["found"]["median"]
    assert named and named <= given.keys()
