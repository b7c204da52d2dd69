"""`sluice verify --repair`: standard output holds SQL alone."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from cli import _verify_job


def test_the_report_leaves_standard_output_to_the_sql(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[bool] = []

    def job_shown(job: Any, *, to_stderr: bool) -> Any:
        shown.append(to_stderr)
        return contextlib.nullcontext()

    monkeypatch.setattr("etl.verify.run_verify", lambda *arguments: SimpleNamespace(state="done"))
    monkeypatch.setattr("cli._this_process.pausing", lambda *arguments: contextlib.nullcontext())
    monkeypatch.setattr("cli._this_process.this_process", lambda command: None)
    monkeypatch.setattr(_verify_job, "job_shown", job_shown)
    monkeypatch.setattr(_verify_job, "lines", lambda summary: iter(["a row differs"]))
    job: Any = SimpleNamespace(id="1", spec=SimpleNamespace(kind="verify"))
    settings: Any = None
    _verify_job.compared_here(settings, job, "sluice verify --repair", to_stderr=True)
    said = capsys.readouterr()
    assert (said.out, said.err, shown) == ("", "a row differs\n", [True])
