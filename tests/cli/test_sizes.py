"""Bytes and seconds as people read them."""

import pytest

from sluice.cli._copy_progress import CopyProgress, copy_text
from sluice.etl.copy import CopyProgressCounts
from sluice.etl.display_units import format_duration, format_size, format_value
from sluice.relay.jobs import JobCounts, JobProgress, TableProgress


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (4_200, "4.2 kB"),
        (999_960, "1.0 MB"),
        (3_000_000_000, "3.0 GB"),
        (5e18, "5,000.0 PB"),
    ],
)
def test_bytes_are_said_in_the_unit_that_needs_few_digits(count, said):
    assert format_size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")],
)
def test_times_are_said_in_seconds_minutes_or_hours(seconds, said):
    assert format_duration(seconds) == said


def test_how_long_a_copy_takes_is_not_told_from_its_first_hundredth():
    progress = CopyProgressCounts(
        bytes_in_all=200 << 20, planned_bytes=1 << 20, rows=400, doing="bank.account", began_s=0.0
    )
    text = copy_text(progress, 33.0, 4e6)
    assert "left" not in text and "400 rows" in text
    progress.planned_bytes = 50 << 20
    text = copy_text(progress, 33.0, 4e6)
    assert "of about 209.7 MB" in text and "about 39 s left" in text
    assert "left" not in copy_text(progress, 0.0, 0.0)  # it waits


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Zoë 你好 🎉", "'Zoë 你好 🎉'"),
        ("a\nb\x1b[2J\u202ec\u200bd", r"'a\nb\x1b[2J\u202ec\u200bd'"),
        (b"\x00\xff", "0x00ff"),
        (None, "NULL"),
        ("é" * 9, "'éééé…"),
    ],
)
def test_letters_are_readable_and_what_has_no_glyph_is_escaped(value, said):
    assert format_value(value, 5 if value == "é" * 9 else 60) == said


def test_progress_is_printed_on_standard_error_whatever_is_copied(capsys):
    with CopyProgress() as display:
        display.show(
            CopyProgressCounts(
                bytes_in_all=200, planned_bytes=50, rows=400, doing="bank.account", began_s=0.0
            )
        )
        display.show_job(JobProgress({"d.t": TableProgress(JobCounts(1, 50, 1), 200, 4)}))
    said = capsys.readouterr()
    assert (said.out, said.err.count("25 %")) == ("", 1)


def test_what_comes_after_the_last_row_is_said_without_a_time_left():
    progress = CopyProgressCounts(
        bytes_in_all=200,
        bytes=50,
        planned_bytes=200,
        rows=400,
        doing="verifying bank.account",
        began_s=0.0,
    )
    assert copy_text(progress, 33.0, 4.0) == "100 %, 50 B, 400 rows, 33/s, verifying bank.account"
