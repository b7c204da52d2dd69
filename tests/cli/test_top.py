"""`sluice top`: everything in 80 columns and 24 lines, whatever there is to say."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.cli import group
from sluice.cli._top_view import PipelineView, screen
from sluice.etl.operate.overview import (
    STATES,
    ArchivePart,
    DownstreamPart,
    LandingPart,
    Overview,
    PumpPart,
    RelayPart,
    VerifiedPart,
)
from sluice.relay.measures import LagPoint

DEADLINE_S = 120.0


def overview(**more: object) -> Overview:
    parts = {
        "at_ms": 1_800_000_000_000,
        "pipeline": "sluice-1",
        "pumps": tuple(
            PumpPart(f"pump-{n}", "h:8250", "works", "online", 1, 900.0) for n in range(9)
        ),
        "landing": LandingPart("works", 5, 1_000.0, 10.0, 2_000.0, 7),
        "relay": RelayPart("works", "file:///r", 1, 5, 1_500.0, 123_456_789, ""),
        "archive": ArchivePart("works", "file:///a", 1, 5, 60_000.0, 10**12, 3, 1),
        "downstream": DownstreamPart(
            "stopped", "db:3306, checkpoint a.b", 4, 2_500.0, 9.0, 1_999.0
        ),
        "verified": VerifiedPart(1, 3.6e6, 10_000, ("a.b",), 3),
        "overrides": ({"commit_ts": 1},),
        "jobs": (),
        "failures": (),
        "held_back": (),
        "errors": {},
    }
    return Overview(**(parts | more))  # type: ignore[arg-type]


def job(n: int) -> dict[str, object]:
    return {
        "id": f"restore-{n}",
        "state": "running",
        "progress": {"percent": 40, "rows_per_s": 9.0, "left_s": 61.0},
    }


def test_whatever_there_is_to_say_it_fits_the_terminal_and_the_keys_are_its_last_line() -> None:
    seen = overview(
        jobs=tuple(job(n) for n in range(9)),
        held_back=tuple(
            f"a very long sentence about table {'x' * 300} number {n}" for n in range(9)
        ),
    )
    points = [LagPoint(n, float(n), None, 1.0, 1.0) for n in range(360)]
    for width, height in ((80, 24), (40, 10), (200, 60)):
        lines = screen(PipelineView("shop", seen, points), width, height, "keys").plain.splitlines()
        assert len(lines) == height
        assert max(map(len, lines)) <= width
        assert lines[-1] == "keys"
    text = screen(PipelineView("shop", seen, points), 80, 200).plain
    assert "shop" in text
    for said in (
        "and 4 more pumps",
        "restore-0: 40 %",
        "and 6 more jobs: `sluice jobs list`",
        "1 table differs by 3 rows",
        "1 to come",
        "sentence about",
    ):
        assert said in text


def test_what_others_wrote_gives_the_terminal_no_orders() -> None:
    seen = overview(held_back=("table \x1b]0;gotcha\x07 \x1b[2J",), errors={"upstream": "\x1b[2J"})
    text = screen(PipelineView("\x1b[31m", seen), 80, 24).plain
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\x1b" not in screen(PipelineView("a", None, error="\x1b[2J"), 80, 24).plain


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_shown_by_its_name(state: str) -> None:
    seen = overview(landing=LandingPart(state, 0, None, 0.0, 0.0, 0))
    assert any(
        line.startswith("landing") and state in line
        for line in screen(PipelineView("", seen), 80, 24).plain.split("\n")
    )


def test_without_a_terminal_it_is_printed_once_and_json_is_for_programs(files_config: Path) -> None:
    printed = CliRunner().invoke(group, ["top", "--config", str(files_config)])
    assert printed.exit_code == 0, printed.output
    assert "landing     idle" in printed.output
    told = json.loads(
        CliRunner().invoke(group, ["top", "--json", "--config", str(files_config)]).output
    )
    assert told[""]["landing"]["state"] == "idle"


def test_of_several_pipelines_each_is_printed_or_the_one_that_is_named(
    files_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files_config.parent / "books.toml").write_text(
        files_config.read_text().replace("/relay", "/other").replace("/out", "/books")
    )
    monkeypatch.setenv("SLUICE_PIPELINES", str(files_config.parent))
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    assert json.loads(CliRunner().invoke(group, ["top", "--json"]).output).keys() == {
        "books",
        "shop",
    }
    one = CliRunner().invoke(group, ["top", "--json", "--pipeline", "shop"])
    assert json.loads(one.output).keys() == {"shop"}, one.output


def test_settings_that_cannot_be_read_are_shown_in_place_of_a_stack_trace(
    files_config: Path,
) -> None:
    files_config.write_text("[relay\n")
    printed = CliRunner().invoke(group, ["top", "--once", "--config", str(files_config)])
    assert printed.exit_code == 0
    assert str(files_config).replace("/", "") in "".join(printed.output.split()).replace("/", "")


def test_in_a_terminal_of_80_by_24_it_shows_the_way_and_q_ends_it(files_config: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [
        sys.executable,
        "-m",
        "sluice.cli",
        "top",
        "--every",
        "0.2",
        "--config",
        str(files_config),
    ]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"}
    )
    os.close(slave)
    try:
        shown, until = b"", time.monotonic() + DEADLINE_S
        while b"downstream" not in shown:
            assert time.monotonic() < until, shown
            if select.select([master], [], [], 1.0)[0]:
                shown += os.read(master, 65536)
        os.write(master, b"q")
        while process.poll() is None:
            assert time.monotonic() < until
            if select.select([master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    os.read(master, 65536)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
