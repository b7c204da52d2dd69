"""Run the suite, then what failed once more, alone.

What passes then is reported as flaky and fails nothing.

    python -m tests.flaky [PYTEST-ARGUMENT …]

Alone means: one after the other in one process, without other workers beside it. Only tests that
failed are run again. A worker that died, a module that can't be collected and an error of the
session fail the run as they are. So do more failures than `RERUN_LIMIT`: those have a common cause.
pytest-reportlog writes down what both runs report.

`.ci/run` sends SIGABRT to all processes at its limit. Those of pytest print where they are, and
end; this one prints what has failed until then.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RERUN_LIMIT = 20
"""Tests that are run again at most: chance fails one or two of thousands, a broken server hundreds.
"""
SHOWN_LINES = 12
"""Of a first failure in the last lines; the whole of it is further up."""
_OK, _TESTS_FAILED = 0, 1
_PHASES = ("setup", "call", "teardown")


@dataclass(slots=True)
class Session:
    """What one run of pytest reported. `finished`: it came to its end by itself."""

    status: int
    finished: bool = False
    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    """The first failure of each test that failed."""
    beyond_tests: list[str] = field(default_factory=list)
    """Failures that belong to no phase of a test: a worker died, a module couldn't be collected."""


def run(arguments: list[str]) -> Session:
    """Run pytest, which prints as ever, and return what it reported."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "reports.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", f"--report-log={log}", *arguments], check=False
        )
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return _session(done.returncode, (json.loads(line) for line in lines))


def _session(status: int, reports: Iterable[dict[str, Any]]) -> Session:
    session = Session(status)
    for report in reports:
        kind, node = report["$report_type"], report.get("nodeid", "")
        if kind == "SessionFinish":
            session.finished = True
        elif kind not in ("TestReport", "CollectReport") or report["outcome"] == "rerun":
            continue
        elif report["outcome"] == "failed":
            if kind == "TestReport" and report["when"] in _PHASES:
                session.failures.setdefault(node, _failure(report))
            else:
                session.beyond_tests.append(f"{node}: {_failure(report)}")
        elif kind == "TestReport" and report["outcome"] == "skipped":
            session.skipped.add(node)
        elif kind == "TestReport" and report["when"] == "call":
            session.passed.add(node)
    session.passed -= session.failures.keys()
    session.skipped -= session.failures.keys()
    return session


def _failure(report: dict[str, Any]) -> str:
    """Return where and how it failed."""
    text = report["longrepr"]
    if isinstance(text, dict):
        crash = text.get("reprcrash") or {}
        text = (
            f"{crash.get('path')}:{crash.get('lineno')}: {crash.get('message')}"
            if crash
            else json.dumps(text)
        )
    return f"{report.get('when', 'collecting')}: {text}"


def _print_failure(word: str, node: str, failure: str) -> None:
    print(word, node)
    print(*(f"    {line}" for line in failure.splitlines()[:SHOWN_LINES]), sep="\n", flush=True)


def reason_to_fail(first: Session) -> str:
    """Return why failures aren't run again; "" if they can be."""
    if first.status != _TESTS_FAILED or not first.finished:
        return f"pytest ended with {first.status}, which isn't about a test"
    if first.beyond_tests:
        return "not the failure of a test: " + "\n".join(first.beyond_tests)
    if not first.failures:
        return "the session failed, and none of its tests did"
    if len(first.failures) > RERUN_LIMIT:
        return f"{len(first.failures)} tests failed, more than chance explains"
    return ""


def main(arguments: list[str]) -> int:
    """Run the suite with these arguments of pytest; return the exit status."""
    signal.signal(signal.SIGABRT, lambda *_: None)
    first = run(arguments)
    if first.status == _OK:
        return _OK
    if reason := reason_to_fail(first):
        print(f"nothing is run again: {reason}", flush=True)
        if not first.finished:
            print(f"until then {len(first.passed)} passed, {len(first.failures)} failed")
            for node, failure in first.failures.items():
                _print_failure("FAILED", node, failure)
        return first.status or _TESTS_FAILED
    print(f"\nonce more, alone: what failed ({len(first.failures)})", flush=True)
    again = run(["-n0", *first.failures])
    flaky = (
        again.passed & first.failures.keys() if again.finished and not again.beyond_tests else set()
    )
    for node, failure in first.failures.items():
        if node in flaky:
            _print_failure("FLAKY", node, failure)
    failed = first.failures.keys() - flaky
    for node in sorted(failed):
        print(f"FAILED TWICE {node}")
    print(
        f"{len(first.passed) + len(flaky)} passed, {len(failed)} failed, {len(first.skipped)}"
        " skipped",
        flush=True,
    )
    return _TESTS_FAILED if failed or (again.status != _OK and not failed) else _OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
