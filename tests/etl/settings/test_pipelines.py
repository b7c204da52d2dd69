"""Several pipelines: which there are, their names, and that none is in the way of another."""

import re
from pathlib import Path

import pytest

from sluice.etl.settings import SettingsError, load_settings
from sluice.etl.settings.pipelines import check_pipelines, pipelines

ONE = (
    '[upstream]\npd-urls = "http://127.0.0.1:2379"\n[relay]\nurl ='
    ' "file:///relay"\n[downstream]\nhost = "{host}"\n'
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    (made := tmp_path / "pipelines").mkdir()
    monkeypatch.setenv("SLUICE_PIPELINES", str(made))
    return made


def write(folder, **hosts):
    for name, host in hosts.items():
        (folder / f"{name}.toml").write_text(ONE.format(host=host))


def test_one_file_is_one_pipeline_without_a_name_and_its_dags_are_called_as_ever(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    write(tmp_path, sluice="db")
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    (only,) = pipelines().values()
    assert (only.name, only.dag_id("replicate"), only.tags) == ("", "sluice_replicate", ["sluice"])
    assert only.settings == load_settings() and only.settings.relay.pipeline == ""


def test_without_any_setting_there_is_one_and_its_tasks_say_what_is_missing(monkeypatch):
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    (only,) = pipelines().values()
    with pytest.raises(SettingsError, match="SLUICE_CONFIG"):
        _ = only.settings


def test_each_file_of_the_folder_is_a_pipeline_called_as_its_file(folder):
    write(folder, shop="db", search="db2")
    (folder / "notes.txt").write_text("no pipeline")
    found = pipelines()
    assert list(found) == ["search", "shop"] and found.problems() == []
    assert [found["shop"].dag_id(kind) for kind in ("replicate", "restore_drill")] == [
        "sluice_replicate_shop", "sluice_restore_drill_shop",
    ]  # fmt: skip
    assert found["shop"].tags == ["sluice", "shop"]
    settings = found["search"].settings
    assert (settings.downstream.host, settings.relay.pipeline, settings.name) == (
        "db2",
        "search",
        "search",
    )
    assert settings.dag_id("archive") == "sluice_archive_search"
    assert load_settings(folder / "search.toml") == settings


def test_who_has_one_and_gets_others_leaves_the_first_as_it_is(folder, tmp_path, monkeypatch):
    write(folder, search="db2")
    write(tmp_path, sluice="db")
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    assert [pipeline.dag_id("replicate") for pipeline in pipelines().values()] == [
        "sluice_replicate",
        "sluice_replicate_search",
    ]
    assert pipelines()[""].settings.downstream.host == "db"


def test_a_pipeline_that_is_not_there_is_answered_with_those_that_are(folder):
    write(folder, shop="db", search="db2")
    with pytest.raises(SettingsError, match=r"no pipeline 'shp'.*search, shop"):
        pipelines().named("shp")


@pytest.mark.parametrize(
    "name", ["my shop", "käse", "a.b", "drill", "drill_two", "continuously", "x" * 65]
)
def test_a_file_whose_name_no_dag_can_have_is_named_and_the_others_stay(folder, name):
    write(folder, shop="db")
    write(folder, **{name: "db2"})
    assert list(pipelines()) == ["shop"]
    with pytest.raises(SettingsError, match="rename the file") as raised:
        check_pipelines()
    assert f"{name}.toml" in str(raised.value) and "/shop.toml" not in str(raised.value)
    with pytest.raises(SettingsError, match="rename the file"):
        load_settings(folder / f"{name}.toml")


def test_names_that_differ_only_in_case_are_refused(folder):
    write(folder, Shop="db", shop="db2")
    assert list(pipelines()) == ["Shop"]
    with pytest.raises(SettingsError, match=r"shop\.toml.*only in case"):
        check_pipelines()


@pytest.mark.parametrize("content", [b"[upstream\n", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(folder, content):
    write(folder, shop="db")
    (folder / "bad.toml").write_bytes(content)
    assert list(pipelines()) == ["bad", "shop"]
    with pytest.raises(SettingsError, match=r"bad\.toml"):
        check_pipelines()
    with pytest.raises(SettingsError, match=r"bad\.toml"):
        _ = pipelines()["bad"].settings
    assert pipelines()["shop"].settings.downstream.host == "db"


def test_of_two_with_the_same_checkpoint_the_later_one_does_not_begin_and_says_which_is_in_its_way(
    folder,
):
    write(folder, shop="db", shop2="DB", third="db3")
    with pytest.raises(
        SettingsError, match=r"shop2\.toml: .*shop\.toml.*db:3306, tidb_binlog\.checkpoint"
    ):
        check_pipelines()
    with pytest.raises(SettingsError, match=r"shop\.toml"):
        _ = pipelines()["shop2"].settings
    assert pipelines()["shop"].settings and pipelines()["third"].settings
    other = ONE.format(host="db") + 'checkpoint-schema = "other"\n'
    (folder / "shop2.toml").write_text(other)
    with pytest.raises(
        SettingsError, match=r"shop2\.toml: dropped tables.*shop\.toml.*recycle-schema"
    ):
        check_pipelines()
    (folder / "shop2.toml").write_text(other + 'recycle-schema = "others"\n')
    check_pipelines()


@pytest.mark.parametrize(
    "downstream",
    [
        '[downstream]\ntype = "file"\n[file]\ndir = "/out"\n',
        '[downstream]\ntype = "kafka"\n[kafka]\nbrokers = "k:1"\nsavepoint = "/out"\n',
    ],
)
def test_two_that_write_to_the_same_folder_or_keep_the_same_savepoint_are_refused_too(
    folder, downstream
):
    for name in ("a", "b"):
        (folder / f"{name}.toml").write_text(ONE.partition("[downstream]")[0] + downstream)
    with pytest.raises(SettingsError, match=r"b\.toml: .*a\.toml.*/out"):
        check_pipelines()


def test_a_folder_that_is_not_there_is_said_and_the_first_pipeline_stays(tmp_path, monkeypatch):
    write(tmp_path, sluice="db")
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "none"))
    assert list(pipelines()) == [""]
    with pytest.raises(SettingsError, match="none"):
        check_pipelines()


def test_whoever_has_settings_opens_the_relay_log_as_its_pipeline():
    """Else what is one pipeline's own would be looked for where another's lies."""
    root = Path(__file__).parents[3]
    rooms = ("etl", "cli", "expectations", "plugins", "monitoring", "dags")
    wrong = [
        f"{path.relative_to(root)}: {line.strip()}"
        for room in rooms
        for path in sorted((root / room).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"RelayLog\.open\(.*relay\.url", line)
    ]
    assert wrong == [], "settings.open_relay()"
