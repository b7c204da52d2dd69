"""Give every command that prints for people the option `--json`, in one way.

Commands with documents of their own have an option of that name already. All others print
`{"schema": 1, "command": …, "exit_code": …, "lines": […]}`: what they print for people, by line.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
from typing import Any

import click

__all__ = ["NO_JSON", "SCHEMA", "add_json", "wants_json"]

SCHEMA = 1
"""Version of the documents. A version only gets more fields; what else changes is another one."""
NO_JSON = frozenset(("metrics", "spark", "pump", "bench", "completion", "man"))
"""Commands that run until they are stopped, or print a format of their own."""
_KEY = "sluice.json"


def wants_json() -> bool:
    """Return whether the command that runs now was given the option of this module."""
    ctx = click.get_current_context(silent=True)
    return bool(ctx is not None and ctx.meta.get(_KEY))


def add_json(command: click.Command, name: str) -> click.Command:
    """Add `--json` to a command, or to all commands of a group, that lack it; return the command.

    `name` is as it is typed, without `sluice`.
    """
    if name.partition(" ")[0] in NO_JSON:
        return command
    if isinstance(command, click.Group):
        for each, sub in command.commands.items():
            add_json(sub, f"{name} {each}")
    elif not any("--json" in param.opts for param in command.params):
        option = click.Option(
            ["--json"], is_flag=True, expose_value=False, callback=_remember,
            help="For scripts: one JSON object with the output.",
        )  # fmt: skip
        command.params.append(option)
        command.callback = _printing_json(command.callback, name)
    return command


def _remember(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 # click calls it
    ctx.meta[_KEY] = wanted


def _printing_json(callback: Any, name: str) -> Any:
    @functools.wraps(callback)
    def run(*args: Any, **options: Any) -> Any:
        if not wants_json():
            return callback(*args, **options)
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with contextlib.redirect_stdout(printed):
            status = callback(*args, **options)
        text = printed.buffer.getvalue().decode()
        code = status if isinstance(status, int) else 0
        click.echo(text.rstrip("\n") if _is_document(text) else _lines(text, name, code))
        return status

    return run


def _is_document(text: str) -> bool:
    """Return whether the command has printed a JSON object itself, as jobs do."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _lines(text: str, name: str, code: int) -> str:
    document = {
        "schema": SCHEMA,
        "command": f"sluice {name}",
        "exit_code": code,
        "lines": text.splitlines(),
    }
    return json.dumps(document, ensure_ascii=False)
