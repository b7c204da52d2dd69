"""What a command line says and ends with: `typed` in this process, by the console script's own
entry; `started` as a process, which costs a Python's start and imports. What changes its process
for good has to be started.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from sluice.cli import main

ROOT = Path(__file__).resolve().parents[2]


def typed(
    *words: object, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> CompletedProcess[str]:
    """`sluice` and these words, with `env` beside the environment's variables."""
    stdout, stderr = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    argv = [str(word) for word in words]
    before = _of_process()
    try:
        with (
            pytest.MonkeyPatch.context() as patched,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            patched.chdir(cwd)
            for name, value in (env or {}).items():
                patched.setenv(name, value)
            main(argv)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        said = [stream.buffer.getvalue().decode() for stream in (stdout, stderr)]
        assert _of_process() == before, "it changes its process: start one"
        return CompletedProcess(["sluice", *argv], ended.code, *said)
    raise AssertionError("it goes on")


def _of_process() -> tuple[object, ...]:
    """What a command might change for good."""
    log, signals = logging.root, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [*log.handlers], log.level, Path.cwd(), dict(os.environ), *map(signal.getsignal, signals)


def started(
    *words: object, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> CompletedProcess[str]:
    """The same."""
    return subprocess.run(
        [sys.executable, "-m", "sluice.cli", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
    )
