"""All checks print alike: a line each with its hint, the counts, and exit code 1 for failures."""

import json

import pytest

from sluice.cli._check_results import print_checks
from sluice.errors import FAIL, OK, WARN, CheckResult

WELL = CheckResult("upstream", OK, "cluster 7", "not shown")
SHORT = CheckResult("disk", WARN, "1 GB is free", "make room")
BROKEN = CheckResult("spark", FAIL, "no answer", "start it")


def test_each_result_is_a_line_and_its_hint_another_unless_all_is_well(capsys):
    assert print_checks([WELL, SHORT, BROKEN]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok    upstream  cluster 7",
        "warn  disk      1 GB is free",
        "                -> make room",
        "FAIL  spark     no answer",
        "                -> start it",
        "3 checks: 1 failed, 1 with a warning",
    ]


@pytest.mark.parametrize(("results", "code"), [([WELL, SHORT], 0), ([WELL, BROKEN], 1)])
def test_only_a_failure_makes_the_exit_code_1_and_json_has_the_same_rule(capsys, results, code):
    assert print_checks(results) == code
    capsys.readouterr()
    assert print_checks(results, as_json=True, start_ts=5) == code
    found = json.loads(capsys.readouterr().out)
    assert found["start_ts"] == 5
    assert (found["failed"], found["warned"]) == (code, 1 - code)
    assert [each["area"] for each in found["results"]] == [each.area for each in results]
    assert found["results"][1]["hint"]
