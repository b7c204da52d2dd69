"""sluice pump: run a pump."""

from __future__ import annotations

import runpy
import sys

import click


@click.command(
    "pump",
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    },
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run a pump with the flags of TiDB's Pump, e.g. `sluice pump --config pump.toml`."""
    sys.argv = ["sluice pump", *arguments]
    runpy.run_module("sluice.pump_service", run_name="__main__", alter_sys=False)
