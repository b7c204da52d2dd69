"""The ring of clusters in ``sluice.toml``: what is taken, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.changes.channels import Channels
from sluice.etl.settings import Settings, load_settings
from sluice.etl.settings.errors import SettingsError

TEXT = (
    '[upstream]\npd-urls = "unused"\n[relay]\nurl = "file:///a"\n[downstream]\nhost = "b"\n'
    "loopback-control = true\nchannel-id = 2\nring = [1, 2, 3]\n"
)


def settings_of(folder: Path, text: str) -> Settings:
    path = folder / "sluice.toml"
    path.write_text(text)
    return load_settings(path)


@pytest.mark.parametrize(("own", "returned", "passed_on"), [(1, 2, {3}), (2, 3, {1}), (3, 1, {2})])
def test_each_cluster_replicates_to_the_next_and_the_last_to_the_first(
    tmp_path: Path, own: int, returned: int, passed_on: set[int]
) -> None:
    settings = settings_of(tmp_path, TEXT.replace("channel-id = 2", f"channel-id = {own}"))
    assert settings.downstream.channels == Channels(own, returned, frozenset(passed_on))
    assert hash(settings.downstream)  # caches have it as a key


def test_without_a_ring_both_directions_of_a_pair_have_one_channel(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, TEXT.replace("ring = [1, 2, 3]\n", ""))
    assert settings.downstream.channels == Channels(2, 2)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("loopback-control = true\n", "", "needs loopback-control = true"),
        ("channel-id = 2", "channel-id = 4", "channel-id = 4, the upstream's channel, is not in"),
        ("[1, 2, 3]", "[1, 2, 2]", "each once"),
        ("[1, 2, 3]", "[2]", "the channels of all clusters"),
        ("[1, 2, 3]", '["1", "2"]', "a list of numbers expected"),
        ("[1, 2, 3]", "[1, true]", "a list of numbers expected"),
        ('host = "b"', 'type = "kafka"\nhost = "b"', "it is for databases"),
        (
            "[1, 2, 3]\n",
            '[1, 2, 3]\n[apply]\nconflicts = "last-commit-wins"\nreverse-relay = "file:///c"\n',
            "can't be used with [apply] reverse-relay",
        ),
    ],
)
def test_rings_that_cannot_be_replicated_are_refused_by_name(
    tmp_path: Path, old: str, new: str, part: str
) -> None:
    assert old in TEXT
    with pytest.raises(SettingsError) as caught:
        settings_of(tmp_path, TEXT.replace(old, new, 1))
    assert part in str(caught.value)
    assert "[downstream] ring" in str(caught.value)
