"""sluice pages: answer what the pages in Airflow ask."""

from __future__ import annotations

import contextlib

import click

from sluice.cli._settings import address_of
from sluice.cli._stack import signals_as_interrupt

_LISTEN = "127.0.0.1:8247"
_TOKEN = "SLUICE_PAGES_TOKEN"  # noqa: S105 # the variable's name


@click.command("pages")
@click.option(
    "--listen",
    default=_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address at which Airflow's api-server asks.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help=f"File with the token that the api-server has to have [${_TOKEN}].",
)
@click.option(
    "--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate, for HTTPS."
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key.")
def command(
    *,
    listen: str,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Answer what the pages in Airflow ask, until interrupted.

    So the api-server needs no password of a database or a store. `[airflow] pages` names the
    Airflow connection with this server's address and token. The pipelines are those of
    SLUICE_CONFIG and SLUICE_PIPELINES.
    """
    from sluice.etl.settings.secrets import from_environment, from_file
    from sluice.pages.serving import serve

    host, port = address_of(listen, _LISTEN)
    if token_file:
        token = from_file("--token-file", token_file)
    else:
        token = from_environment("sluice pages", _TOKEN)
    if len(token) < 16:
        raise click.UsageError("the token has fewer than 16 characters: `openssl rand -hex 32`")
    with contextlib.suppress(KeyboardInterrupt), signals_as_interrupt():
        click.echo(f"serving {'https' if tls_cert else 'http'}://{host}:{port}")
        serve(host, port, token, tls_cert or "", tls_key or "")
