"""sluice config: convert a drainer.toml into a sluice.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sluice.etl.settings import read_drainer


@click.command("config")
@click.argument(
    "file", metavar="DRAINER_TOML", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--relay-url",
    metavar="URL",
    default="file:///var/lib/sluice/relay",
    show_default=True,
    help="URL of the relay log.",
)
def command(file: Path, relay_url: str) -> None:
    """Print the sluice.toml that corresponds to DRAINER_TOML.

    Settings without a meaning for Sluice become comments; passwords aren't printed.
    """
    click.echo(sluice_toml(file, relay_url), nl=False)


def sluice_toml(file: Path, relay_url: str) -> str:
    """Return the text of a sluice.toml. Raises DrainerSettingsError."""
    drainer = read_drainer(file)
    lines = [f"# {warning}" for warning in drainer.warnings]
    document: dict[str, Any] = {"upstream": {}, "relay": {"url": relay_url}} | drainer.document
    if "pd-urls" not in document["upstream"]:
        document["upstream"] = {"pd-urls": "http://127.0.0.1:2379"} | document["upstream"]
    for name, section in document.items():
        section = dict(section)
        lines += ["", f"[{name}]"]
        if section.pop("password-drainer-config", None):
            lines += [
                "# The password is not copied. Name its place with one of:",
                '# password-env = "SLUICE_DOWNSTREAM_PASSWORD"    an environment variable',
                '# password-file = "/etc/sluice/password"         the first line of a file',
                '# password-connection = "downstream"             an Airflow connection',
            ]
        tables = {key: value for key, value in section.items() if key == "binlog-filter-rule"}
        lines += [
            f"{_key(key)} = {_value(value)}" for key, value in section.items() if key not in tables
        ]
        for key, rules in tables.items():
            for rule, content in rules.items():
                lines += [
                    "",
                    f"[{name}.{key}.{_key(rule)}]",
                    *(f"{_key(k)} = {_value(v)}" for k, v in content.items()),
                ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(text: str) -> str:
    return (
        text
        if text.replace("-", "").replace("_", "").isalnum() and text.isascii()
        else json.dumps(text)
    )


def _value(value: object) -> str:
    """Write a value as TOML; JSON's strings, numbers, true and false are TOML's."""
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
