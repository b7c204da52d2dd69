"""Share what the benchmarks' commands have in common: their stack, kept results, and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.devstack.repository import default_home

if TYPE_CHECKING:
    from sluice.devstack import Stack

JSON_OPTION = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object on standard output, progress on standard error.",
)


def bench_stack(ctx: click.Context, settings: str = "") -> Stack:
    from sluice.devstack import Stack

    return Stack(bench_home(ctx), settings=settings)


def bench_home(ctx: click.Context) -> Path:
    home: str | None = ctx.obj
    return (Path(home) if home else default_home()) / "bench"


def say(line: str) -> None:
    click.echo(line, err=True)


def keep(ctx: click.Context, found: dict[str, Any], *, as_json: bool) -> bool:
    """Save the results as a file; with `as_json`, print them, too. Return `as_json`."""
    from sluice.bench.results import document, keep

    whole = document(str(ctx.info_name), found)
    path = keep(bench_home(ctx) / "results", whole)
    click.echo(f"\nkept as {path}", err=True)
    if as_json:
        click.echo(json.dumps(whole, indent=1))
    return as_json


def print_table(rows: dict[str, str]) -> None:
    for name, value in rows.items():
        click.echo(f"{name:<12} {value}")


def print_stages(title: str, stages: dict[str, float]) -> None:
    click.echo(f"\n{title}")
    for stage, milliseconds in stages.items():
        click.echo(f"  {stage:<12} {milliseconds:>10,.0f}")


def print_machine() -> None:
    from sluice.bench.results import describe

    click.echo()
    print_table(describe())
