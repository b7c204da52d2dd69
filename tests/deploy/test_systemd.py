"""The systemd units start commands that are there, with arguments these take, and shut in what they
start.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sluice.cli import group
from sluice.pump_service.config.flags import parse_flags
from sluice.pump_service.listener import port

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
PREFIX = "/opt/sluice/bin/"
UNITS = sorted(FOLDER.glob("*.service"))
SHUT_IN = {
    "User": "sluice",
    "NoNewPrivileges": "true",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "true",
    "PrivateTmp": "true",
    "PrivateDevices": "true",
    "RestrictSUIDSGID": "true",
    "SystemCallFilter": "@system-service",
    "UMask": "0027",
    "LimitCORE": "0",
}


def sections(unit: Path) -> dict[str, dict[str, str]]:
    """Section → key → value; a key that is given twice is an error."""
    found: dict[str, dict[str, str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
            continue
        key, equals, value = line.partition("=")
        assert equals and key not in section, f"{unit.name}: {line}"
        section[key] = value
    return found


def by_name(units):
    return pytest.mark.parametrize("unit", units, ids=lambda unit: unit.stem)


def command(unit: Path) -> tuple[str, list[str]]:
    program, *arguments = sections(unit)["Service"]["ExecStart"].split()
    assert program.startswith(PREFIX)
    assert (Path(sys.prefix) / "bin" / program.removeprefix(PREFIX)).exists()
    return program.removeprefix(PREFIX), arguments


def test_there_is_a_unit_for_each_part_of_a_site():
    parts = {"pump", "metrics", "replicate", "spark-connect"}
    parts |= {
        f"airflow-{name}" for name in ("api-server", "scheduler", "dag-processor", "triggerer")
    }
    assert {unit.stem for unit in UNITS} == {f"sluice-{part}" for part in parts}


@by_name([unit for unit in UNITS if "airflow" not in unit.stem])
def test_what_a_unit_starts_is_a_command_of_sluice_that_takes_these_arguments(unit):
    program, arguments = command(unit)
    assert program == "sluice"
    if arguments[0] == "pump":
        assert parse_flags(arguments[1:]) == {"config": "/etc/sluice/pump.toml"}
        return
    found: click.Command = group
    while isinstance(found, click.Group):
        name, *arguments = arguments
        inner = found.get_command(click.Context(found), name)
        assert inner is not None, name
        found = inner
    parameters = {option: each for each in found.params for option in each.opts}
    for option, value in zip(arguments[::2], arguments[1::2], strict=True):
        assert option in parameters and not value.startswith("-")


def test_what_the_units_of_airflow_start_are_components_of_it():
    from airflow.cli.cli_parser import get_parser

    for unit in UNITS:
        if "airflow" in unit.stem:
            program, arguments = command(unit)
            if program == "python":  # which ends the scheduler's tasks with it
                assert arguments == ["-m", "sluice.airflow.scheduler"]
                continue
            assert program == "airflow"
            assert get_parser().parse_args(arguments).subcommand == unit.stem.removeprefix(
                "sluice-airflow-"
            )


def environment() -> dict[str, str]:
    """What systemd reads of airflow.env."""
    lines = (FOLDER / "airflow.env").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip('"') for name, value in pairs}


def test_a_shell_reads_the_same_of_the_environment_file_as_systemd_does():
    command = ["/bin/sh", "-c", f"set -a; . {FOLDER / 'airflow.env'}; /usr/bin/env -0"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    read = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    assert environment().items() <= read.items()


def test_every_setting_of_airflow_in_the_environment_file_is_one_and_secrets_come_from_files():
    from airflow.configuration import conf

    given = environment()
    for name, value in given.items():
        if not name.startswith("AIRFLOW__"):
            continue
        section, key = name.removeprefix("AIRFLOW__").lower().split("__")
        if key.endswith("_cmd"):
            key = key.removesuffix("_cmd")
            assert (section, key) in conf.sensitive_config_values, name
            assert value.startswith("cat /etc/sluice/secrets/"), name
        else:
            assert (section, key) not in conf.sensitive_config_values, name
        assert key in conf.configuration_description[section]["options"], name
    assert {"SLUICE_CONFIG", "AIRFLOW_HOME", "PYSPARK_PYTHON", "AIRFLOW__CORE__DAGS_FOLDER"} <= set(
        given
    )
    assert given["AIRFLOW__API__HOST"] == "127.0.0.1"  # its simple users are for a person at hand


@by_name(UNITS)
def test_what_a_unit_starts_is_shut_in_comes_back_after_a_failure_and_has_time_to_end(unit):
    service = sections(unit)["Service"]
    assert SHUT_IN.items() <= service.items()
    assert service["Restart"] == "on-failure" and int(service["RestartSec"]) > 0
    assert int(service["TimeoutStopSec"]) >= 15
    assert service["WorkingDirectory"] in {
        f"/var/lib/{name}" for name in service["StateDirectory"].split()
    }
    assert int(service["LimitNOFILE"]) >= port._TARGET_NOFILE


@by_name(UNITS)
def test_a_unit_comes_after_units_that_there_are(unit):
    named = sections(unit)["Unit"]["After"].split()
    assert "network-online.target" in named
    assert {name for name in named if name.startswith("sluice-")} <= {each.name for each in UNITS}


def test_systemd_has_nothing_to_say_about_them(tmp_path):
    """Where there is a systemd; elsewhere the tests above have read the same files."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace(PREFIX, f"{sys.prefix}/bin/")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == len(UNITS)
    if program := shutil.which("systemd-analyze"):
        done = subprocess.run(
            [program, "verify", "--man=no", *sorted(map(str, tmp_path.iterdir()))],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert [line for line in done.stderr.splitlines() if "sluice-" in line] == []
