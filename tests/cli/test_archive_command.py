"""`sluice archive` where there is little to do."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sluice.cli import group
from sluice.etl.history.archive.archiver import Archiver
from sluice.etl.settings import load_settings
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from tests.relay.relaykit import BASE, window


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "sluice.toml"
    path.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "{(tmp_path / "relay").as_uri()}"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    return path


def said(config, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(
        group, ["archive", words[0], "--config", str(config), *words[1:]], standalone_mode=False
    )
    assert done.exception is None, done.exception
    assert (done.return_value or 0) == code
    return done.stdout if "--json" in words else done.output


def test_with_nothing_landed_every_command_says_so(config):
    assert "nothing is landed yet" in said(config, "run")
    assert "0 segments became 0" in said(config, "compact")
    assert "the archive holds nothing there" in said(config, "check")


def test_what_is_left_to_archive_is_archived_without_spark_if_nothing_was_committed_in_it(
    config, tmp_path
):
    relay = RelayLog.open((tmp_path / "relay").as_uri())
    settings = load_settings(config)
    archiver = Archiver(settings)
    for n in range(3):
        relay.commit(window(BASE + 10 * n, BASE + 10 * n + 10))
        archiver.through()
    assert json.loads(said(config, "run", "--json"))["segments"] == 0
    relay.commit(window(BASE + 30, BASE + 40))
    assert "1 new segment, 0 transactions" in said(config, "run")
    assert len(list(Archive.open(settings.archive_url).segments())) == 4
