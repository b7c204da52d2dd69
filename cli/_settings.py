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
        raise SettingsError(f"no settings at {path}: pass --config, or set {CONFIG_VARIABLE} to the settings file, or start a stack with `sluice up`")
    return load_settings(path)


def operator() -> str:
    """Who gives the command, for decisions."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
