"""The page for those who come from TiDB Binlog has a line for every setting that the parsers know, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etl.settings import drainer_toml
from pump_service.config import file as pump_file
from pump_service.config import flags

PAGE = (Path(__file__).parents[3] / "docs/from-tidb-binlog.md").read_text(encoding="utf-8")


def settings_in(title: str) -> set[str]:
    """The settings in the table under a heading, as ``[section] key``."""
    (table,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = set()
    for line in re.findall(r"^\| (.*?) \|", table, re.MULTILINE):
        section = ""
        for name in re.findall(r"`([^`]+)`", line):
            match = re.fullmatch(r"(?:\[([\w.]+)\] )?([\w-]+)", name)
            assert match, name
            section = match[1] or section
            found.add(f"[{section}] {match[2]}" if section else match[2])
    return found


def test_every_setting_of_a_pump_is_in_the_table() -> None:
    known = {*flags.FLAGS, *pump_file.FILE_KEYS, *flags.IGNORED}
    known |= {f"[security] {key}" for key in flags.SECURITY_FLAGS}
    known |= {f"[storage] {key}" for key in pump_file._STORAGE_KEYS}
    known |= {f"[storage.kv] {key}" for key in (*pump_file._KV_KEYS, *pump_file._KV_IGNORED)}
    assert settings_in("pump.toml") == known


def accepted(section: str, tmp_path: Path) -> set[str]:
    """The keys that a section of drainer.toml may have, as its reader says when it meets another one."""
    path = tmp_path / "drainer.toml"
    path.write_text("no-such-key = 1\n" if not section else f"[{section}]\nno-such-key = 1\n")
    with pytest.raises(drainer_toml.DrainerSettingsError, match="unknown key") as caught:
        drainer_toml.read_drainer(path)
    listed = re.search(r"the Drainer has (.*)", str(caught.value))
    assert listed, caught.value
    return set(listed[1].split(", "))


def test_every_setting_of_a_drainer_is_in_the_table(tmp_path: Path) -> None:
    known = set()
    nested = {"": {"security", "syncer"}, "syncer": {"to", "relay"}, "syncer.to": {"security", "checkpoint"}}
    for section in ("", "syncer", "syncer.relay", "syncer.to", "syncer.to.checkpoint"):
        keys = accepted(section, tmp_path) - nested.get(section, set())
        known |= {f"[{section}] {key}" if section else key for key in keys}
    for section in ("security", "syncer.to.security"):
        known |= {f"[{section}] {key}" for key in flags.SECURITY_FLAGS}
    assert settings_in("drainer.toml") == known
