"""sluice init: write a sluice.toml, and check what it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sluice.cli._check_results import json_option, print_checks
from sluice.errors import FAIL, RequestError, SluiceError

if TYPE_CHECKING:
    from sluice.etl.settings import Settings

_ADDRESS = re.compile(r"(?:([^@\s]+)@)?(\[[0-9A-Fa-f:.]+\]|[^\s:@/]+)(?::([0-9]{1,5}))?")


class _Address(NamedTuple):
    user: str
    host: str
    port: int


class _AddressType(click.ParamType[_Address]):
    """An address, `user@host:port`; the user and the port may be left out."""

    name = "address"

    def __init__(self, port: int) -> None:
        self._port = port

    def convert(
        self, value: str | _Address, param: click.Parameter | None, ctx: click.Context | None
    ) -> _Address:
        if isinstance(value, _Address):
            return value
        match = _ADDRESS.fullmatch(value.strip())
        if match is None or int(match[3] or self._port) > 65_535:
            self.fail(
                f"invalid address {value!r}: expected one such as sluice@db.example:{self._port}",
                param,
                ctx,
            )
        return _Address(match[1] or "root", match[2].strip("[]"), int(match[3] or self._port))


@click.command("init")
@click.option("--pd-urls", help="PD's client URLs, comma separated.")
@click.option(
    "--tidb", type=_AddressType(4000), metavar="USER@HOST:PORT",
    help="Address at which TiDB serves SQL, and the user for copies and verification.",
)  # fmt: skip
@click.option(
    "--tidb-password-env", metavar="NAME", default="SLUICE_TIDB_PASSWORD", show_default=True,
    help="Environment variable with that user's password; empty for none.",
)  # fmt: skip
@click.option(
    "--downstream", type=_AddressType(3306), metavar="USER@HOST:PORT",
    help="MySQL, MariaDB or TiDB, and who writes there.",
)  # fmt: skip
@click.option(
    "--password-env", metavar="NAME", default="SLUICE_DOWNSTREAM_PASSWORD", show_default=True,
    help="Environment variable with that user's password; empty for none.",
)  # fmt: skip
@click.option("--spark", metavar="URL", help="Spark Connect server, as sc://host:15002.")
@click.option(
    "--spark-token-file", metavar="FILE", default="",
    help="File with the token that the Spark Connect server wants [none].",
)  # fmt: skip
@click.option(
    "--service", is_flag=True,
    help="`sluice replicate` lands and applies, in place of Airflow's tasks.",
)  # fmt: skip
@click.option(
    "--relay-url", metavar="URL", default="file:///var/lib/sluice/relay", show_default=True,
    help="URL of the relay log: a folder, or a bucket (s3, gs, az).",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("sluice.toml"),
    show_default=True, help="The file to write; it mustn't be there yet.",
)  # fmt: skip
@json_option
def command(
    pd_urls: str | None,
    tidb: _Address | None,
    tidb_password_env: str,
    downstream: _Address | None,
    password_env: str,
    spark: str | None,
    spark_token_file: str,
    relay_url: str,
    output: Path,
    *,
    service: bool,
    as_json: bool,
) -> int:
    """Write a commented sluice.toml, check what it names, and name the next command.

    It asks for what the options leave out: PD, TiDB, the downstream and Spark. Nothing but the file
    is written. If the downstream's user lacks rights, it prints the statements that grant them.
    Exit code 1 if a check fails: repair it, and `sluice doctor` checks again.
    """
    from sluice.etl.operate.doctor import PARTIES, check_pipeline
    from sluice.etl.settings import SettingsError, load_settings

    if output.exists():
        raise _exists(output)
    said = _Answers(
        pd_urls or _ask("PD's client URLs", "--pd-urls"),
        tidb
        or _ask(
            "TiDB, user@host:port", "--tidb", _AddressType(4000), password_env=tidb_password_env
        ),
        tidb_password_env,
        downstream
        or _ask(
            "Downstream, user@host:port",
            "--downstream",
            _AddressType(3306),
            password_env=password_env,
        ),
        password_env,
        spark or _ask("Spark Connect server", "--spark", default="sc://127.0.0.1:15002"),
        spark_token_file,
        relay_url,
        service=service,
    )
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(_settings_text(said))
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise RequestError(f"'{output}' can't be written: {error}") from error
    try:
        settings = load_settings(str(output))
    except SettingsError as error:
        output.unlink()
        raise SettingsError(
            f"no '{output}' was written, for these answers make no settings: {error.args[0]}",
            hint="run `sluice init` again with another answer",
        ) from error
    click.echo(f"wrote {output}", err=as_json)
    results = check_pipeline(settings, PARTIES)
    lacks_rights = any(each.state == FAIL and "lacks rights" in each.text for each in results)
    grants = _grants(settings) if lacks_rights else []
    if any(each.state == FAIL for each in results):
        next_command = f"sluice doctor --config {output}"
    else:
        next_command = f"sluice bootstrap --config {output} --from tidb:// --plan"
    more = {"file": str(output), "grants": grants, "next": next_command}
    code = print_checks(results, as_json=as_json, **more)
    if as_json:
        return code
    if lacks_rights:
        click.echo(f"rights: `sluice grants --config {output}` prints what the user needs")
    for line in grants:
        click.echo(f"  {line}")
    click.echo(f"next: {'repair what failed, then ' if code else ''}`{next_command}`")
    return code


def _ask(
    what: str,
    option: str,
    kind: click.ParamType[Any] | None = None,
    default: str | None = None,
    password_env: str = "",
) -> Any:
    """Ask on standard error: standard output has results alone.

    The question names the option that answers it, and the variable that has to hold the password.
    """
    password = f", password in ${password_env}" if password_env else ""
    return click.prompt(f"{what} ({option}{password})", type=kind, default=default, err=True)


def _exists(output: Path) -> RequestError:
    hint = "name another file with --output, or remove it"
    return RequestError(f"'{output}' is there already", hint=hint)


def _grants(settings: Settings) -> list[str]:
    """Return the GRANT statements; [] if the upstream doesn't answer."""
    from sluice.cli.grants import needed_grants

    try:
        return needed_grants(settings)
    except (SluiceError, OSError):
        return []  # a check has named what doesn't answer


class _Answers(NamedTuple):
    """The settings that the options and the answers give."""

    pd_urls: str
    tidb: _Address
    tidb_password_env: str
    downstream: _Address
    password_env: str
    spark: str
    spark_token_file: str
    relay_url: str
    service: bool


def _settings_text(said: _Answers) -> str:
    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # JSON's strings are TOML's

    def password(key: str, name: str, example: str = "NAME") -> str:
        return f"{key} = {quoted(name)}" if name else f'# {key} = "{example}"'

    service = (
        "\n[airflow]\n# `sluice replicate` lands and applies; Airflow's DAG only watches it.\n"
        'replication = "service"\n'
    ) * said.service
    return f"""\
# A pipeline of Sluice. Every key: `docs/reference/settings.md`.

[upstream]
pd-urls = {quoted(said.pd_urls)}
# TiDB's SQL port, for copies and verification. The user needs SELECT and REPLICATION CLIENT.
sql-host = {quoted(said.tidb.host)}
sql-port = {said.tidb.port}
sql-user = {quoted(said.tidb.user)}
{password("sql-password-env", said.tidb_password_env)}  # an environment variable

[relay]
# Each pipeline, or the pipelines of one landing, has a relay log of its own.
url = {quoted(said.relay_url)}
keep = "7d"  # how long windows stay after all have read them

[archive]
keep = "30d"  # how far back every moment can be restored

[spark]
# The Spark Connect server: `sluice spark connect` runs one on this machine.
remote = {quoted(said.spark)}
{password("token-file", said.spark_token_file, "FILE")}  # the server's token

[downstream]
host = {quoted(said.downstream.host)}
port = {said.downstream.port}
user = {quoted(said.downstream.user)}
{password("password-env", said.password_env)}  # an environment variable
{service}
# Only some databases or tables; without this section all but the system's own.
# [filter]
# replicate-do-db = ["shop"]
"""
