"""Which pipeline a command is about."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cli._stack import stack_of

if TYPE_CHECKING:
    from etl.settings import Settings
    from etl.settings.pipelines import Pipelines


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--config`."""
    return click.option(
        "--config", type=click.Path(exists=True, dir_okay=False),
        help="The pipeline's settings file [$SLUICE_CONFIG, else that of the one-machine stack].",
    )(function)  # fmt: skip


def named_config(ctx: click.Context, config: str | None) -> str | None:
    """The settings file that `--config` or $SLUICE_CONFIG names; a `--home` that was typed goes before the variable."""
    from etl.settings import CONFIG_VARIABLE

    typed = ctx.find_root().get_parameter_source("home") == ParameterSource.COMMANDLINE
    return config or (None if typed else os.environ.get(CONFIG_VARIABLE)) or None


def settings_of(ctx: click.Context, config: str | None) -> Settings:
    """The settings of the pipeline that the command is about. Raises SettingsError."""
    from etl.settings import CONFIG_VARIABLE, SettingsError, load_settings

    path = named_config(ctx, config) or str(stack_of(ctx).home / "sluice.toml")
    if not Path(path).exists():
        raise SettingsError(
            f"no settings at {path}: pass --config, or set {CONFIG_VARIABLE} to the settings file, or start a stack"
            " with `sluice up`"
        )
    return load_settings(path)


def pipelines_of(ctx: click.Context, config: str | None) -> Pipelines:
    """The pipelines that a command which looks at all of them is about: that of --config alone; else those that the
    environment names; else the one-machine stack's.
    """
    from etl.settings.pipelines import NamedPipeline, Pipelines, pipelines

    if config is not None:
        return Pipelines({"": NamedPipeline("", Path(config))})
    typed = ctx.find_root().get_parameter_source("home") == ParameterSource.COMMANDLINE
    found = pipelines()
    if not typed and any(each.path is not None for each in found.values()):
        return found
    return Pipelines({"": NamedPipeline("", stack_of(ctx).home / "sluice.toml")})


def acting_on(ctx: click.Context, config: str | None) -> Settings:
    """The settings of the pipeline that the command is going to change something of; prints which one that is. Raises
    SettingsError, and UsageError when it isn't clear which is meant.
    """
    from etl.operate import identity
    from etl.settings import CONFIG_VARIABLE

    possible = {} if config else _possible(ctx)
    if len(possible) > 1:
        found = "\n".join(f"  --config {path}   ({why})" for path, why in possible.items())
        raise click.UsageError(f"which pipeline? There is more than one; say which:\n{found}", ctx)
    settings = settings_of(ctx, config)
    path = config or named_config(ctx, config) or str(stack_of(ctx).home / "sluice.toml")
    click.echo(
        f"{identity(settings)}"
        f" ({path}{'' if config or not os.environ.get(CONFIG_VARIABLE) else f', from {CONFIG_VARIABLE}'})"
    )
    return settings


def _possible(ctx: click.Context) -> dict[Path, str]:
    """The settings files that a command without --config could mean, each once, and why."""
    from etl.settings import CONFIG_VARIABLE

    if ctx.find_root().get_parameter_source("home") == ParameterSource.COMMANDLINE:
        return {}
    named = os.environ.get(CONFIG_VARIABLE)
    places = [(Path(named), f"${CONFIG_VARIABLE}")] if named else []
    places += [
        (stack_of(ctx).home / "sluice.toml", "the one-machine stack"),
        (Path("sluice.toml"), "this folder"),
        (Path("/etc/sluice/sluice.toml"), "this machine"),
    ]
    found: dict[Path, str] = {}
    for path, why in places:
        if path.exists():
            found.setdefault(path.resolve(), why)
    return found


def operator() -> str:
    """Who gives the command, for decisions."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
