"""sluice config: convert a drainer.toml, or show what the rules make of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._settings import config_option, settings_of
from sluice.errors import SluiceError
from sluice.etl.settings import read_drainer

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.tidb.schema import Table


@click.command("config")
@click.argument(
    "file",
    metavar="[DRAINER_TOML]",
    required=False,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--relay-url",
    metavar="URL",
    default="file:///var/lib/sluice/relay",
    show_default=True,
    help="URL of the relay log.",
)
@click.option(
    "--check", "table", metavar="TABLE",
    help="Show what filters, routes and row rules make of this upstream table (schema.table).",
)  # fmt: skip
@click.option(
    "--row", metavar="JSON",
    help="With --check: a row after a change, {\"column\": value}; alone it is inserted.",
)  # fmt: skip
@click.option(
    "--old-row", metavar="JSON",
    help="With --check: the row before the change; alone it is deleted.",
)  # fmt: skip
@click.option(
    "--partial", is_flag=True,
    help="Propose rules for tables that have fewer or more columns downstream than upstream.",
)  # fmt: skip
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    file: Path | None,
    relay_url: str,
    table: str | None,
    row: str | None,
    old_row: str | None,
    partial: bool,
    config: str | None,
) -> int:
    """Print the sluice.toml that corresponds to DRAINER_TOML, or check a pipeline's rules.

    Settings without a meaning for Sluice become comments; passwords aren't printed. With --check
    and --partial the exit code is 1 if a rule, or a column, would stop replication of a table.
    """
    if [file is not None, table is not None, partial].count(True) != 1:
        raise click.UsageError("name a DRAINER_TOML, or a table by --check, or give --partial")
    if partial:
        return _partial(settings_of(ctx, config))
    if table is not None:
        return _check(
            settings_of(ctx, config), table, _row("--old-row", old_row), _row("--row", row)
        )
    if file is not None:
        click.echo(sluice_toml(file, relay_url), nl=False)
    return 0


def _row(option: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if not isinstance(found, dict):
        raise click.BadParameter('an object expected: {"id": 1}', param_hint=option)
    return found


def _check(
    settings: Settings, name: str, old: dict[str, Any] | None, new: dict[str, Any] | None
) -> int:
    from sluice.etl.copy.copy_source_cluster import SourceCluster
    from sluice.etl.operate.rule_check import check_rules

    with SourceCluster.connect(settings.upstream) as cluster:
        definitions = cluster.definitions(cluster.pd.tso()).of_users()
    tables = [table for table in definitions.tables if table.is_base_table]
    found = check_rules(settings, tables, name, old, new)
    for line in found.lines:
        click.echo(line)
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    for line in _outdated(settings, tables):
        click.echo(f"warning: {line}")
    for problem in found.problems:
        click.echo(f"stops: {problem}")
    return 1 if found.problems else 0


def _partial(settings: Settings) -> int:
    from sluice.etl.copy.copy_source_cluster import SourceCluster
    from sluice.etl.downstream import MySQLSession
    from sluice.etl.operate.partial_tables import held_columns, propose_partial

    if settings.downstream.type != "mysql":
        raise click.UsageError("--partial is about a database: files and topics lack no columns")
    with SourceCluster.connect(settings.upstream) as cluster:
        tables = cluster.definitions(cluster.pd.tso()).of_users().tables
    session = MySQLSession(settings.downstream)
    session.connect()
    try:
        found = propose_partial(settings, tables, held_columns(session))
    finally:
        session.close()
    if found.text:
        click.echo(found.text)
    elif not found.problems:
        click.echo("# every table downstream has the columns of the upstream's")
    for problem in found.problems:
        click.echo(f"stops: {problem}", err=True)
    return 1 if found.problems else 0


def _outdated(settings: Settings, tables: Sequence[Table]) -> list[str]:
    """Return which tables follow former rules downstream, in words."""
    from sluice.etl.copy.rule_changes import describe_outdated, outdated_tables

    try:
        return [describe_outdated(table) for table in outdated_tables(settings, tables)]
    except (SluiceError, OSError, ValueError) as error:
        return [f"it is unknown whether tables follow former rules: {error}"]


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
