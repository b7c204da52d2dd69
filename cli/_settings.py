"""Find the pipeline that a command is about, and its settings."""

from __future__ import annotations

import functools
import getpass
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from sluice.cli._moments import RelativeMoment

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.etl.settings.pipelines import Pipelines


_NAME, _PRINTED = "sluice.pipeline", "sluice.pipeline.printed"
_CHOSEN = "sluice.pipeline.chosen"
_CLOCK_PRINTED = "sluice.clock.printed"
_STACK = "the one-machine stack"
_MACHINE = Path("/etc/sluice/sluice.toml")


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--config` and `--pipeline` to a command."""
    config = click.option(
        "--config", type=click.Path(exists=True, dir_okay=False),
        help="Settings file of the pipeline [$SLUICE_CONFIG, else the only one there is].",
    )  # fmt: skip
    pipeline = click.option(
        "--pipeline", metavar="NAME", expose_value=False, callback=_remember,
        help="Name of a pipeline in $SLUICE_PIPELINES; `sluice pipelines` lists them.",
    )  # fmt: skip
    return config(pipeline(_by_upstreams_clock(function)))


def _by_upstreams_clock(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have the times ago that a command was given count from its upstream's now."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        if any(isinstance(value, RelativeMoment) for value in options.values()):
            ctx = click.get_current_context()
            # without settings the command says what it lacks, after what is wrong with its words
            if choose_pipeline(ctx, options["config"]).path.exists():
                settings = settings_of(ctx, options["config"])
                options = {n: in_upstreams_time(settings, each) for n, each in options.items()}
        return function(*args, **options)

    return run


def in_upstreams_time(settings: Settings, value: Any) -> Any:
    """Return a relative moment by the upstream's clock (TSO), and print by how much it differs.

    Other values are returned as they are. Raises MomentError.
    """
    if not isinstance(value, RelativeMoment):
        return value
    from sluice.etl.upstream_clock import describe_skew, differing_now, upstream_skew_ms
    from sluice.tidb import tso
    from sluice.tidb.moments import parse_moment

    now = differing_now(settings)
    if now is None:
        return int(value)
    if not (meta := click.get_current_context().meta).get(_CLOCK_PRINTED):
        meta[_CLOCK_PRINTED] = True
        click.echo(
            f"times ago count from the upstream's now, {tso.time_text(now)}: its clock is"
            f" {describe_skew(upstream_skew_ms(settings))} this machine's",
            err=True,
        )
    return parse_moment(value.text, now)


def pipeline_words(ctx: click.Context, config: str | None) -> list[str]:
    """Return the options by which another command is about the same pipeline as this one."""
    name = ctx.meta.get(_NAME)
    return ["--config", config] if config else ["--pipeline", name] if name is not None else []


def _remember(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.meta[_NAME] = name


class ChosenPipeline(NamedTuple):
    """The settings file of the pipeline that a command is about, and what chose it."""

    path: Path
    why: str
    is_stack: bool = False
    """It is the one-machine stack's."""


def choose_pipeline(ctx: click.Context, config: str | None) -> ChosenPipeline:
    """Return the pipeline that the command is about.

    The order: an option (`--config`, `--pipeline`, `--home`), a variable ($SLUICE_CONFIG,
    $SLUICE_PIPELINES with one file, $SLUICE_HOME with a stack), the only file there is. The file
    of the stack need not exist. It is chosen once per command. Raises SettingsError, UsageError.
    """
    chosen: dict[str | None, ChosenPipeline] = ctx.meta.setdefault(_CHOSEN, {})
    if config not in chosen:
        chosen[config] = _choose(ctx, config)
    return chosen[config]


def _choose(ctx: click.Context, config: str | None) -> ChosenPipeline:
    if (name := ctx.meta.get(_NAME)) is not None:
        if config:
            raise click.UsageError("--config and --pipeline name two pipelines: leave one out", ctx)
        return ChosenPipeline(_path_of(name), "from --pipeline")
    if config:
        return ChosenPipeline(Path(config), "from --config")
    stack = _path_of_stack(ctx)
    if _is_home_typed(ctx):
        return ChosenPipeline(stack, "from --home", is_stack=True)
    if named := os.environ.get("SLUICE_CONFIG"):
        return ChosenPipeline(Path(named), "from $SLUICE_CONFIG")
    if os.environ.get("SLUICE_PIPELINES"):
        from sluice.etl.settings.pipelines import pipelines

        return _only_one(ctx, {each.path: "" for each in pipelines().values() if each.path})
    if os.environ.get("SLUICE_HOME") and stack.exists():
        return ChosenPipeline(stack, "from $SLUICE_HOME", is_stack=True)
    places = (stack, _STACK), (Path("sluice.toml"), "this folder"), (_MACHINE, "this machine")
    found = {path.resolve(): why for path, why in reversed(places) if path.exists()}
    return _only_one(ctx, found) if found else ChosenPipeline(stack, _STACK, is_stack=True)


def _only_one(ctx: click.Context, found: Mapping[Path, str]) -> ChosenPipeline:
    """Return the only one of these files. Raises UsageError, which lists them, if it isn't."""
    if len(found) == 1:
        ((path, why),) = found.items()
        return ChosenPipeline(path, why or "the only one in $SLUICE_PIPELINES", why == _STACK)
    listed = [
        f"  {_option(path)}{f'   ({why})' if why else ''}" for path, why in sorted(found.items())
    ]
    raise click.UsageError("\n".join(["which pipeline? Add one of", *listed]), ctx)


def _is_home_typed(ctx: click.Context) -> bool:
    return ctx.find_root().get_parameter_source("home") == ParameterSource.COMMANDLINE


def _path_of_stack(ctx: click.Context) -> Path:
    from sluice.devstack.repository import default_home

    return (Path(ctx.obj).absolute() if ctx.obj else default_home()) / "sluice.toml"


def _path_of(name: str) -> Path:
    from sluice.etl.settings.pipelines import pipelines

    named = pipelines().named(name)
    _ = named.settings  # raises what is wrong with it
    if named.path is None:
        raise click.UsageError(
            "the pipeline without a name is that of $SLUICE_CONFIG, which isn't set"
        )
    return named.path


def settings_of(ctx: click.Context, config: str | None) -> Settings:
    """Return the settings of the pipeline that the command is about, and print which one that is.

    The line goes to standard error, once per command. Raises SettingsError, and UsageError if
    several pipelines could be meant.
    """
    from sluice.etl.settings import CONFIG_VARIABLE, SettingsError, load_settings

    chosen = choose_pipeline(ctx, config)
    if not chosen.path.exists():
        raise SettingsError(
            f"no settings at {chosen.path}: pass --config, or set {CONFIG_VARIABLE} to the settings"
            " file, or start a stack with `sluice up`"
        )
    settings = load_settings(str(chosen.path))
    if _PRINTED not in ctx.meta:
        from sluice.etl.downstream.ownership import describe_pipeline

        ctx.meta[_PRINTED] = True
        click.echo(f"{describe_pipeline(settings)} ({chosen.path}, {chosen.why})", err=True)
    return settings


def pipelines_of(ctx: click.Context, config: str | None) -> Pipelines:
    """Return the pipelines for a command that shows all of them.

    With --config or --pipeline that one alone; else those that the environment names; else the
    only one there is. Raises SettingsError, UsageError.
    """
    from sluice.etl.settings.pipelines import NamedPipeline, Pipelines, pipelines

    if (name := ctx.meta.get(_NAME)) is not None and not config:
        return Pipelines({name: NamedPipeline(name, _path_of(name))})
    if config is not None:
        return Pipelines({"": NamedPipeline("", Path(config))})
    found = pipelines()
    if not _is_home_typed(ctx) and any(each.path is not None for each in found.values()):
        return found
    return Pipelines({"": NamedPipeline("", choose_pipeline(ctx, None).path)})


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


def address_of(listen: str, example: str) -> tuple[str, int]:
    """Return host and port of an option `--listen`. Raises BadParameter."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise click.BadParameter(
            f"{listen!r}: host:port is expected, such as {example}", param_hint="--listen"
        )
    return host.strip("[]"), int(port)
