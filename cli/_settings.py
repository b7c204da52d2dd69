"""Find the pipeline that a command is about, and its settings."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sluice.cli._stack import stack_of

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.etl.settings.pipelines import Pipelines


_NAME = "sluice.pipeline"


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--config` and `--pipeline` to a command."""
    config = click.option(
        "--config", type=click.Path(exists=True, dir_okay=False),
        help="Settings file of the pipeline [$SLUICE_CONFIG, else that of the one-machine stack].",
    )  # fmt: skip
    pipeline = click.option(
        "--pipeline", metavar="NAME", expose_value=False, callback=_remember,
        help="Name of a pipeline in $SLUICE_PIPELINES; `sluice pipelines` lists them.",
    )  # fmt: skip
    return config(pipeline(function))


def _remember(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.meta[_NAME] = name


def config_path(ctx: click.Context, config: str | None) -> str | None:
    """Return the path of the settings file, None if neither options nor variables name one.

    The order: `--config` or `--pipeline`, then $SLUICE_CONFIG, then the only file in
    $SLUICE_PIPELINES. A `--home` on the command line goes before the variables. Raises
    SettingsError, UsageError.
    """
    name = ctx.meta.get(_NAME)
    if name is not None and config:
        raise click.UsageError("--config and --pipeline name two pipelines: leave one out", ctx)
    if name is not None:
        return str(_path_of(name))
    if config or ctx.find_root().get_parameter_source("home") == ParameterSource.COMMANDLINE:
        return config or None
    return os.environ.get("SLUICE_CONFIG") or _only_one(ctx)


def _path_of(name: str) -> Path:
    from sluice.etl.settings.pipelines import pipelines

    named = pipelines().named(name)
    _ = named.settings  # raises what is wrong with it
    if named.path is None:
        raise click.UsageError(
            "the pipeline without a name is that of $SLUICE_CONFIG, which isn't set"
        )
    return named.path


def _only_one(ctx: click.Context) -> str | None:
    """Return the file of the only pipeline in $SLUICE_PIPELINES, None if that isn't set.

    Raises UsageError if there are several.
    """
    from sluice.etl.settings.pipelines import pipelines

    if not os.environ.get("SLUICE_PIPELINES"):
        return None
    found = pipelines()
    if len(found) != 1:
        raise click.UsageError(f"which pipeline? --pipeline {' | '.join(found) or 'NAME'}", ctx)
    return str(next(iter(found.values())).path)


def settings_of(ctx: click.Context, config: str | None) -> Settings:
    """Return the settings of the pipeline that the command is about. Raises SettingsError."""
    from sluice.etl.settings import CONFIG_VARIABLE, SettingsError, load_settings

    path = config_path(ctx, config) or str(stack_of(ctx).home / "sluice.toml")
    if not Path(path).exists():
        raise SettingsError(
            f"no settings at {path}: pass --config, or set {CONFIG_VARIABLE} to the settings file,"
            " or start a stack with `sluice up`"
        )
    return load_settings(path)


def pipelines_of(ctx: click.Context, config: str | None) -> Pipelines:
    """Return the pipelines for a command that shows all of them.

    With --config or --pipeline that one alone; else those that the environment names; else the
    one-machine stack's. Raises SettingsError, UsageError.
    """
    from sluice.etl.settings.pipelines import NamedPipeline, Pipelines, pipelines

    if (name := ctx.meta.get(_NAME)) is not None and not config:
        return Pipelines({name: NamedPipeline(name, _path_of(name))})
    if config is not None:
        return Pipelines({"": NamedPipeline("", Path(config))})
    typed = ctx.find_root().get_parameter_source("home") == ParameterSource.COMMANDLINE
    found = pipelines()
    if not typed and any(each.path is not None for each in found.values()):
        return found
    return Pipelines({"": NamedPipeline("", stack_of(ctx).home / "sluice.toml")})


def settings_for_write(ctx: click.Context, config: str | None) -> Settings:
    """Return the settings of the pipeline to change, and print which pipeline that is.

    Raises SettingsError, and UsageError if several pipelines could be meant.
    """
    from sluice.etl.operate import describe_pipeline
    from sluice.etl.settings import CONFIG_VARIABLE

    possible = {} if config or _NAME in ctx.meta else _possible(ctx)
    if len(possible) > 1:
        found = "\n".join(f"  {_option(path)}   ({why})" for path, why in possible.items())
        raise click.UsageError(
            f"which pipeline? There is more than one; choose with --config:\n{found}", ctx
        )
    settings = settings_of(ctx, config)
    path = config or config_path(ctx, config) or str(stack_of(ctx).home / "sluice.toml")
    click.echo(
        f"{describe_pipeline(settings)}"
        f" ({path}"
        f"{'' if config or not os.environ.get(CONFIG_VARIABLE) else f', from {CONFIG_VARIABLE}'})",
        err=True,
    )
    return settings


def _possible(ctx: click.Context) -> dict[Path, str]:
    """Return the settings files that a command without --config could mean, with reasons."""
    from sluice.etl.settings import CONFIG_VARIABLE
    from sluice.etl.settings.pipelines import pipelines

    if ctx.find_root().get_parameter_source("home") == ParameterSource.COMMANDLINE:
        return {}
    if os.environ.get(CONFIG_VARIABLE):  # set by hand; the printed line names it
        return {}
    places = [
        (stack_of(ctx).home / "sluice.toml", "the one-machine stack"),
        (Path("sluice.toml"), "this folder"),
        (Path("/etc/sluice/sluice.toml"), "this machine"),
    ]
    places += [
        (pipeline.path, "$SLUICE_PIPELINES") for pipeline in pipelines().values() if pipeline.path
    ]
    found: dict[Path, str] = {}
    for path, why in places:
        if path.exists():
            found.setdefault(path.resolve(), why)
    return found


def _option(path: Path) -> str:
    from sluice.etl.settings.pipeline_names import name_of

    return f"--pipeline {name}" if (name := name_of(path)) else f"--config {path}"


def operator_name() -> str:
    """Return user@host of the caller, for overrides and jobs."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
