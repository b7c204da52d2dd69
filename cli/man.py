"""sluice man: print the manual page, made of what `--help` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata

import click

_NO_REWRAP = "\b"
_HEADING = re.compile(r"(\w[\w ]*):")
_ROW = re.compile(r"  (\S.*?) {2,}(\S.*)")


@click.command("man")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Print the manual page of Sluice, or of one COMMAND, for man(1).

    `sluice man | man -l -` shows it. Put it into ~/.local/share/man/man1/sluice.1 for `man sluice`.
    """
    found, name = ctx.find_root().command, "sluice"
    for word in words:
        sub = found.get_command(ctx, word) if isinstance(found, click.Group) else None
        if sub is None:
            raise click.UsageError(f"there is no command {name} {word}", ctx)
        found, name = sub, f"{name} {word}"
    click.echo("\n".join(_page(found, name)))


def _page(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    title, version = name.replace(" ", "-"), metadata.version("sluice")
    summary, *_ = _paragraphs(command.help)
    yield f'.TH "{title.upper()}" "1" "" "Sluice {version}" "Sluice"'
    yield '.SH "NAME"'
    yield f"{_escaped(title)} \\- {_escaped(summary.rstrip('.'))}"
    yield '.SH "SYNOPSIS"'
    yield _synopsis(context)
    yield '.SH "DESCRIPTION"'
    yield from _prose(_paragraphs(command.help))
    yield '.SH "OPTIONS"'
    yield from _options(context)
    if isinstance(command, click.Group):
        yield '.SH "COMMANDS"'
        yield from _commands(command, name)
    yield from _epilog(command.epilog)


def _commands(group: click.Group, name: str) -> Iterator[str]:
    """Yield a section for each command that does something."""
    context = click.Context(group, info_name=name)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} {word}")
            continue
        own = click.Context(command, info_name=f"{name} {word}")
        yield f'.SS "{_escaped(f"{name} {word}")}"'
        yield _synopsis(own)
        yield ".PP"
        yield from _prose(_paragraphs(command.help))
        yield from _options(own)


def _synopsis(context: click.Context) -> str:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"\\fB{_escaped(context.info_name or '')}\\fR {_escaped(pieces)}".rstrip()


def _options(context: click.Context) -> Iterator[str]:
    for param in context.command.get_params(context):
        if (record := param.get_help_record(context)) is not None:
            yield ".TP"
            yield f"\\fB{_escaped(record[0])}\\fR"
            yield _text(record[1]) or "\\&"


def _epilog(text: str | None) -> Iterator[str]:
    """Yield sections of an epilog: a heading with a colon, then rows of two columns."""
    for paragraph in _paragraphs(text):
        heading, *rows = paragraph.removeprefix(_NO_REWRAP).strip("\n").split("\n")
        if (match := _HEADING.fullmatch(heading)) is None:
            yield from _prose([paragraph])
            continue
        yield f'.SH "{_escaped(match[1].upper())}"'
        for row in rows:
            if pair := _ROW.fullmatch(row):
                yield from (".TP", f"\\fB{_escaped(pair[1])}\\fR", _text(pair[2]))
            else:
                yield _text(row)


def _paragraphs(text: str | None) -> list[str]:
    return re.split(r"\n[ \t]*\n", (text or "").strip("\n"))


def _prose(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs; as it is written what click doesn't wrap either."""
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        if paragraph.startswith(_NO_REWRAP):
            yield ".nf"
            yield from map(_text, paragraph.removeprefix(_NO_REWRAP).strip("\n").split("\n"))
            yield ".fi"
        else:
            yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """Return a line of text with what stands between backquotes in bold."""
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", _escaped(text))


def _escaped(text: str) -> str:
    """Return text that roff doesn't take for anything else."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
