"""sluice programs: check and install what the one-machine stack needs beside Python."""

from __future__ import annotations

import sys

import click


@click.command("programs")
@click.option(
    "--get",
    "wanted",
    is_flag=True,
    help=(
        "Download missing programs from Debian and unpack them beside Sluice's Python packages."
        " Needs no root."
    ),
)
def command(*, wanted: bool) -> int:
    """List the programs that the one-machine stack needs, their paths, and how to install them.

    Pumps don't need them, nor do tasks in your own Airflow and Spark. Exit code 1 if one is
    missing.
    """
    from sluice.devstack.launch.programs import OPTIONAL, REQUIRED, find_path, install_hint, missing
    from sluice.devstack.launch.service import OWN_PROGRAMS, MissingProgram

    lacking = missing()
    if lacking and wanted:
        from sluice.devstack.rootless_install import get

        get(lacking, OWN_PROGRAMS, click.echo)
        lacking = missing()
    for program in (*REQUIRED, *OPTIONAL):
        try:
            place = find_path(program)
        except MissingProgram:
            place = "missing"
        click.echo(f"{program.name:<20} {place:<55} {program.purpose}")
    _show_versions()
    if lacking:
        click.echo(install_hint(lacking), err=True)
    return 1 if lacking else 0


def _show_versions() -> None:
    """Print which packages have another version than the one this release was tested with."""
    from sluice.devstack.repository import untested

    different = untested()
    if different:
        click.echo(
            f"{len(different)} Python packages in {sys.prefix} have other versions than this"
            " release was tested with:"
        )
        for name, (there, tested) in different.items():
            click.echo(f"  {name} {there}, tested with {tested}")
