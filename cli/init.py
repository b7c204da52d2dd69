"""sluice init: write a sluice.toml, and check what it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import click

from sluice.cli._check_results import print_checks
from sluice.errors import FAIL, RequestError

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
@click.option("--pd-urls", prompt="PD's client URLs", help="PD's client URLs, comma separated.")
@click.option(
    "--tidb", type=_AddressType(4000), prompt="TiDB, user@host:port", metavar="USER@HOST:PORT",
    help="Address at which TiDB serves SQL, and the user for copies and verification.",
)  # fmt: skip
@click.option(
    "--tidb-password-env", metavar="NAME", default="SLUICE_TIDB_PASSWORD", show_default=True,
    help="Environment variable with that user's password; empty for none.",
)  # fmt: skip
@click.option(
    "--downstream", type=_AddressType(3306), prompt="Downstream, user@host:port",
    metavar="USER@HOST:PORT", help="MySQL, MariaDB or TiDB, and who writes there.",
)  # fmt: skip
@click.option(
    "--password-env", metavar="NAME", default="SLUICE_DOWNSTREAM_PASSWORD", show_default=True,
    help="Environment variable with that user's password; empty for none.",
)  # fmt: skip
@click.option(
    "--relay-url", metavar="URL", default="file:///var/lib/sluice/relay", show_default=True,
    help="URL of the relay log: a folder, or a bucket (s3, gs, az).",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("sluice.toml"),
    show_default=True, help="The file to write; it mustn't be there yet.",
)  # fmt: skip
def command(
    pd_urls: str,
    tidb: _Address,
    tidb_password_env: str,
    downstream: _Address,
    password_env: str,
    relay_url: str,
    output: Path,
) -> int:
    """Write a commented sluice.toml, check what it names, and name the next command.

    It asks for what the options leave out. Nothing but the file is written. Exit code 1 if a check
    fails: repair it, and `sluice doctor` checks again.
    """
    from sluice.etl.operate.doctor import PARTIES, check_pipeline
    from sluice.etl.settings import load_settings

    text = _settings_text(pd_urls, tidb, tidb_password_env, downstream, password_env, relay_url)
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RequestError(
            f"'{output}' is there already", hint="name another file with --output, or remove it"
        ) from None
    except OSError as error:
        raise RequestError(f"'{output}' can't be written: {error}") from error
    click.echo(f"wrote {output}")
    results = check_pipeline(load_settings(str(output)), PARTIES)
    code = print_checks(results)
    if any(each.state == FAIL and each.area == "downstream" for each in results):
        click.echo(f"rights: `sluice grants --config {output}` prints what the user needs")
    if code:
        click.echo(f"next: repair what failed, then `sluice doctor --config {output}`")
    else:
        click.echo(f"next: `sluice bootstrap --config {output} --from tidb:// --plan`")
    return code


def _settings_text(
    pd_urls: str,
    tidb: _Address,
    tidb_password_env: str,
    downstream: _Address,
    password_env: str,
    relay_url: str,
) -> str:
    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # JSON's strings are TOML's

    def password(key: str, name: str) -> str:
        return f"{key} = {quoted(name)}" if name else f'# {key} = "NAME"'

    return f"""\
# A pipeline of Sluice. Every key: `docs/reference/settings.md`.

[upstream]
pd-urls = {quoted(pd_urls)}
# TiDB's SQL port, for copies and verification. The user needs SELECT and REPLICATION CLIENT.
sql-host = {quoted(tidb.host)}
sql-port = {tidb.port}
sql-user = {quoted(tidb.user)}
{password("sql-password-env", tidb_password_env)}  # an environment variable

[relay]
# Each pipeline, or the pipelines of one landing, has a relay log of its own.
url = {quoted(relay_url)}
keep = "7d"  # how long windows stay after all have read them

[archive]
keep = "30d"  # how far back every moment can be restored

[spark]
# The Spark Connect server: `sluice spark connect` runs one on this machine.
remote = "sc://127.0.0.1:15002"

[downstream]
host = {quoted(downstream.host)}
port = {downstream.port}
user = {quoted(downstream.user)}
{password("password-env", password_env)}  # an environment variable

# Only some databases or tables; without this section all but the system's own.
# [filter]
# replicate-do-db = ["shop"]
"""
