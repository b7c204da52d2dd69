"""The page for those who come from TiDB Binlog has a line for every setting that the parsers know,
and no other.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.etl.settings import drainer_toml
from sluice.pump_service.config import Config, flags
from sluice.pump_service.config import file as pump_file
from sluice.pump_service.store.options import MAX_QUEUED

PAGE = (Path(__file__).parents[3] / "docs/reference/from-tidb-binlog.md").read_text(
    encoding="utf-8"
)
UNITS = {"s": 1, "days": 86_400, "GiB": 1 << 30}
PUMP = Config()
VALUES = {
    "heartbeat-interval": PUMP.heartbeat_interval,
    "gen-binlog-interval": PUMP.gen_binlog_interval,
    "gc": PUMP.gc_s,
    "max-message-size": PUMP.max_message_size + 1,
    "[storage] kv_chan_cap": MAX_QUEUED,
    "[storage] stop-write-at-available-space": PUMP.storage.stop_write_at_available_space,
    "prewrite-timeout": PUMP.prewrite_timeout,
    "gc-safepoint-ttl": PUMP.gc_safepoint_ttl,
    "[syncer.to] kafka-max-message-size": drainer_toml._MAX_MESSAGE_BYTES,
}
"""What the code has for each setting whose line gives a number with or without unit."""

SAMPLES: dict[str, object] = {
    "initial-commit-ts": 7,
    "[syncer] ignore-txn-commit-ts": [7],
    "[syncer] ignore-table": [{"db-name": "a", "tbl-name": "b"}],
    "[syncer] replicate-do-table": [{"db-name": "a", "tbl-name": "b"}],
    "[syncer] replicate-do-db": ["a"],
    "[syncer] binlog-filter-rule": {"r": {"ignore-event": ["all ddl"]}},
    "[syncer] table-migrate-rule": [{"source": {"schema": "a"}, "binlog-filter-rule": []}],
    "[syncer] sync-ddl": False,
    "[syncer] loopback-control": True,
    "[syncer] channel-id": 7,
    "[syncer] db-type": "oracle",
    "[syncer] dest-db-type": "oracle",
    "[syncer.to] sync-mode": 2,
    "[syncer.to] params": {"a": "b"},
    "[syncer.to] read-timeout": "9s",
    "[syncer.to] kafka-max-message-size": 7,
    "[syncer.to] retention-time": 7,
    "[syncer.to.checkpoint] security": {"ssl-ca": "x"},
}
"""A value of each setting that isn't text; of those that are rejected for a value, that one."""
_OF_KAFKA = ("kafka-addrs", "kafka-client-id", "topic-name", "kafka-max-message-size")
KINDS = {"dir": "file", "retention-time": "file", **dict.fromkeys(_OF_KAFKA, "kafka")}
"""The downstream that a setting is for, where that isn't mysql."""


def table(title: str) -> list[tuple[str, str]]:
    """Return the rows of the table under a heading: settings, and what they do here."""
    (found,) = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    return re.findall(r"^\| (.*?) \| (.*) \|$", found, re.MULTILINE)


def names_in(text: str) -> list[str]:
    """Return the settings in a cell, as ``[section] key``.

    One without a section has that of the one before it.
    """
    section, found = "", []
    for name in re.findall(r"`([^`]+)`", text):
        match = re.fullmatch(r"(?:\[([\w.]+)\] )?([\w-]+)", name)
        assert match, name
        section = match[1] or section
        found.append(f"[{section}] {match[2]}" if section else match[2])
    return found


def lines_in(title: str) -> dict[str, str]:
    """Return what the table under a heading has for each setting."""
    return {name: here for names, here in table(title) for name in names_in(names)}


def settings_in(title: str) -> set[str]:
    return set(lines_in(title))


def test_every_setting_of_a_pump_is_in_the_table() -> None:
    known = {*flags.FLAGS, *pump_file.FILE_KEYS, *flags.IGNORED}
    known |= {f"[security] {key}" for key in flags.SECURITY_FLAGS}
    known |= {f"[storage] {key}" for key in pump_file._STORAGE_KEYS}
    known |= {f"[storage.kv] {key}" for key in (*pump_file._KV_KEYS, *pump_file._KV_IGNORED)}
    assert settings_in("pump.toml") == known


def accepted(section: str, tmp_path: Path) -> set[str]:
    """The keys that a section of drainer.toml may have, as its reader says when it meets another
    one.
    """
    path = tmp_path / "drainer.toml"
    path.write_text("no-such-key = 1\n" if not section else f"[{section}]\nno-such-key = 1\n")
    with pytest.raises(drainer_toml.DrainerSettingsError, match="unknown key") as caught:
        drainer_toml.read_drainer(path)
    listed = re.search(r"the Drainer has (.*)", str(caught.value))
    assert listed, caught.value
    return set(listed[1].split(", "))


def test_every_setting_of_a_drainer_is_in_the_table(tmp_path: Path) -> None:
    known = set()
    nested = {
        "": {"security", "syncer"},
        "syncer": {"to", "relay"},
        "syncer.to": {"security", "checkpoint"},
    }
    for section in ("", "syncer", "syncer.relay", "syncer.to", "syncer.to.checkpoint"):
        keys = accepted(section, tmp_path) - nested.get(section, set())
        known |= {f"[{section}] {key}" if section else key for key in keys}
    for section in ("security", "syncer.to.security"):
        known |= {
            f"[{section}] {key}" for key in ("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn")
        }
    assert settings_in("drainer.toml") == known


def numbers(text: str) -> set[float]:
    """Return the quantities in a line, in bytes and seconds; code and versions hold none."""
    prose = re.sub(r"`[^`]*`", "", text)
    found = re.findall(r"(?<![\w.])(\d[\d,]*\d|\d)(?: (s|days|GiB))?\b", prose)
    return {float(number.replace(",", "")) * UNITS.get(unit, 1) for number, unit in found}


def test_every_number_of_the_tables_is_the_one_that_the_code_has() -> None:
    """A switch that takes 1 or 2 has no quantity: what becomes of both is tried below."""
    lines = lines_in("pump.toml") | lines_in("drainer.toml")
    lines.pop("[syncer.to] sync-mode")
    with_numbers = {name: numbers(here) for name, here in lines.items() if numbers(here)}
    assert with_numbers.pop("fake-binlog-interval") == {VALUES["gen-binlog-interval"]}, (
        "another name of it"
    )
    assert with_numbers == {name: {value} for name, value in VALUES.items()}


def goals(setting: str) -> list[str]:
    """Return the settings of sluice.toml that the table names for one of a Drainer, of which one is
    filled.
    """
    names, here = next(row for row in table("drainer.toml") if setting in names_in(row[0]))
    if not (own := re.match(r"`\[", here)):
        return []
    if "same keys" in here:
        sections = re.findall(r"`\[(\w+)\]`", here)
        return [f"[{sections[0]}] {setting.split(' ')[-1]}"]
    named = names_in(re.split(r"[;:]", here)[0])
    ours = names_in(names)
    return [named[ours.index(setting)]] if own and len(named) == len(ours) else named


def written(setting: str, value: object) -> str:
    """Return a drainer.toml with that setting."""
    section, key = re.fullmatch(r"(?:\[([\w.]+)\] )?([\w-]+)", setting).groups()  # type: ignore[union-attr]
    of_syncer = f'db-type = "{kind}"\n' if (kind := KINDS.get(key)) else ""
    if section == "syncer.to.checkpoint" and key in ("host", "port"):
        return f'[{section}]\ntype = "mysql"\n{key} = {toml(value)}\n'
    if section is None:
        return f"{key} = {toml(value)}\n"
    if section == "syncer":
        return f"[syncer]\n{key} = {toml(value)}\n"
    return f"[syncer]\n{of_syncer}[{section}]\n{key} = {toml(value)}\n"


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


@pytest.mark.parametrize("setting", sorted(lines_in("drainer.toml")))
def test_what_the_table_gives_for_a_setting_of_a_drainer_is_what_becomes_of_it(
    setting: str, tmp_path: Path
) -> None:
    here, path = lines_in("drainer.toml")[setting], tmp_path / "drainer.toml"
    path.write_text(written(setting, SAMPLES.get(setting, "some")))
    key = setting.split(" ")[-1]
    if "rejected when it is needed" in here:
        with pytest.raises(drainer_toml.DrainerSettingsError, match=key):
            drainer_toml.drainer_password(path)
        return
    if "rejected" in here and "else no effect" not in here:
        with pytest.raises(drainer_toml.DrainerSettingsError, match=key.removeprefix("dest-")):
            drainer_toml.read_drainer(path)
        return
    read = drainer_toml.read_drainer(path)
    about_it = [warning for warning in read.warnings if key in warning]
    assert bool(about_it) == ("no effect" in here), read.warnings
    filled = {f"[{section}] {each}" for section, keys in read.document.items() for each in keys}
    assert not goals(setting) or filled & set(goals(setting))


@pytest.mark.parametrize("kind", ["file", "kafka"])
def test_the_data_dir_of_a_downstream_that_keeps_its_savepoint_there_is_used_without_a_warning(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "drainer.toml"
    path.write_text(f'data-dir = "/data/old"\n[syncer]\ndb-type = "{kind}"\n')
    read = drainer_toml.read_drainer(path)
    assert read.document[kind]["savepoint"] == "/data/old/savepoint"
    assert read.warnings == []


def test_sync_mode_1_is_taken_and_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "drainer.toml"
    path.write_text("[syncer.to]\nsync-mode = 1\n")
    assert drainer_toml.read_drainer(path).warnings == []
