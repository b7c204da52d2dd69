"""sluice completion: print or install what completes commands and options in a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from sluice.cli._suggestions import Choice

_VARIABLE = "_SLUICE_COMPLETE"


_EVAL = 'eval "$(sluice completion zsh)"'


@click.command("completion")
@click.argument("shell", type=Choice(("bash", "zsh", "fish")))
@click.option(
    "--install", is_flag=True,
    help="Install it for this user in place of printing it; new shells have it.",
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, shell: str, *, install: bool) -> None:
    """Print the script that completes commands, options and their values in SHELL.

    With --install: for bash it is written to ~/.local/share/bash-completion/completions/sluice,
    which the package bash-completion reads, and for fish to ~/.config/fish/completions/sluice.fish.
    For zsh a line is added to ~/.zshrc, once; it belongs behind `compinit`.
    """
    completion = get_completion_class(shell)
    assert completion is not None  # the choices are click's own
    script = completion(ctx.find_root().command, {}, "sluice", _VARIABLE).source()
    if not install:
        click.echo(script)
        return
    path = _place(shell)
    if shell == "zsh":
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if _EVAL not in before.splitlines():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{'' if before.endswith(chr(10)) or not before else chr(10)}{_EVAL}\n")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n", encoding="utf-8")
    click.echo(f"completion for {shell} is in {path}; start a new shell")


def _place(shell: str) -> Path:
    """Return the file of this user in which a shell looks for it."""

    def base(variable: str, default: str) -> Path:
        return Path(os.environ.get(variable) or Path.home() / default)

    if shell == "bash":
        return base("XDG_DATA_HOME", ".local/share") / "bash-completion/completions/sluice"
    if shell == "fish":
        return base("XDG_CONFIG_HOME", ".config") / "fish/completions/sluice.fish"
    return base("ZDOTDIR", "") / ".zshrc"
