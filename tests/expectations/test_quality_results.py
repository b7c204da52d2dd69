"""What runs have found is kept, newest first, and not for ever."""

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.settings import Settings, SettingsError, load_settings
from sluice.expectations.docs import DataDocs
from sluice.expectations.results import FailedExpectation, QualityResults, QualityRun

HEAD = '[upstream]\npd-urls = "pd:2379"\n[downstream]\nhost = "db"\n'


def settings_in(folder: Path, quality: str = "", relay: str = "") -> Settings:
    path = folder / "sluice.toml"
    path.write_text(
        f'{HEAD}[relay]\nurl = "{relay or (folder / "relay").as_uri()}"\n[quality]\n{quality}'
    )
    return load_settings(path)


def run(number: int, suite: str = "shop.orders") -> QualityRun:
    failed = FailedExpectation(
        "expect_column_values_to_be_in_set", "state", "fail", "'<b>' 3 times"
    )
    return QualityRun(
        f"{number}/{suite}",
        number,
        suite,
        "downstream",
        "failed",
        7,
        1,
        "fail",
        0.5,
        name(number),
        4,
        "",
        (failed,),
    )


def name(number: int) -> str:
    return f"{number:013d}-{number:012x}"


def test_runs_come_newest_first_and_the_oldest_go_when_there_are_too_many(tmp_path):
    results = QualityResults(settings_in(tmp_path, "keep = 2\n"))
    assert results.runs() == [] and results.last() == [] and results.newest_ms() == 0
    assert results.note(name(1), [run(1)]) == []
    assert results.note(name(2), [run(2, "a.a"), run(2, "b.b")]) == []
    assert results.note(name(3), [run(3)]) == [name(1)]
    assert results.runs(10) == [run(3), run(2, "a.a"), run(2, "b.b")]
    assert results.runs(2) == [run(3), run(2, "a.a")]
    assert results.last() == [run(3)] and results.newest_ms() == 3


def test_a_run_that_cannot_be_read_is_passed_over(tmp_path):
    results = QualityResults(settings_in(tmp_path))
    results.note(name(1), [run(1)])
    (tmp_path / "relay" / "quality" / f"{name(2)}.json").write_text("[{")
    assert results.runs() == [run(1)]


def test_folders_are_named_from_the_settings_file_on(tmp_path):
    settings = settings_in(tmp_path, 'suites = "what-we-expect"\ndocs = "site"\n')
    assert settings.quality.suites == str(tmp_path / "what-we-expect")
    assert QualityResults(settings).docs_index() == str(tmp_path / "site" / "index.html")


def test_the_docs_are_beside_the_relay_log(tmp_path):
    found = QualityResults(settings_in(tmp_path)).docs_index()
    assert found == str(tmp_path / "relay" / "quality" / "docs" / "index.html")


def test_the_docs_of_a_relay_log_in_an_object_store_are_there_too_and_old_ones_go(
    tmp_path, s3_server
):
    results = QualityResults(settings_in(tmp_path, relay=s3_server.url("relay")))
    docs = results.docs()
    runs = [replace(run(number), page=DataDocs.page(name(number), "a.b")) for number in (1, 2)]
    for one in runs:
        docs.write(one, [], "{}")
    docs.index(runs, [name(2)])
    assert results.docs_index().startswith(
        s3_server.url("relay").partition("?")[0] + "/quality/docs/index.html"
    )
    assert name(2).encode() in (docs.read("index.html") or b"")
    assert docs.read(DataDocs.page(name(2), "a.b")) is not None
    assert docs.read(DataDocs.page(name(1), "a.b")) is None
    assert [
        docs.read(path) for path in ("../x", "/x", "runs", ".lock", "runs//x", "a\0b", "no.html")
    ] == [None] * 7


@pytest.mark.parametrize(
    ("hours", "are"),
    [("1-4", {1, 2, 3}), ("22-2", {22, 23, 0, 1}), ("0-24", set(range(24))), ("", set(range(24)))],
)
def test_hours_of_the_day_go_over_midnight(tmp_path, hours, are):
    assert settings_in(tmp_path, f'hours = "{hours}"\n').quality.hours_utc == are


@pytest.mark.parametrize(
    "wrong", ['hours = "24-3"', 'hours = "night"', 'every = "1x"', "keep = 0", 'on = "moon"']
)
def test_a_wrong_key_is_named(tmp_path, wrong):
    with pytest.raises(SettingsError, match=r"\[quality\] " + wrong.split(" ")[0]):
        settings_in(tmp_path, wrong)
