"""sluice completion: print what completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_SLUICE_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and their values in SHELL.

    For bash put `eval "$(sluice completion bash)"` into ~/.bashrc, for zsh the same with zsh into
    ~/.zshrc. For fish write the output to ~/.config/fish/completions/sluice.fish.
    """
    completion = get_completion_class(shell)
    assert completion is not None  # the choices are click's own
    click.echo(completion(ctx.find_root().command, {}, "sluice", _VARIABLE).source())
