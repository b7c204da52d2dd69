"""Build the commands `sluice pumps` and `sluice drainers`, which differ in their nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sluice.cli._settings import config_option, operator_name, settings_of
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.tidb import NodeStatus

_HELP = {
    "pumps": {
        "list": "List the registry's pumps.",
        "pause": "Stop a pump that will come back.",
        "offline": "Retire a pump: it stops once every drainer has read all it holds.",
        "forget": (
            "Remove an offline or missing pump, and give up what it holds that was not landed."
        ),
    },
    "drainers": {
        "list": "List the registry's drainers, Sluice's pipelines among them.",
        "pause": "Stop a Drainer that will come back.",
        "offline": "Retire a drainer: pumps keep nothing for it any more.",
        "forget": "Remove an offline drainer from the registry.",
    },
}


def group_of(kind: str) -> click.Group:
    """Make the group of commands for `pumps` or `drainers`."""

    @click.group(kind)
    def group() -> None:
        pass

    group.help = f"List the {kind} in the registry, pause, retire or remove one."
    group.add_command(_list(kind))
    for action in ("pause", "offline"):
        group.add_command(_leave(kind, action))
    group.add_command(_forget(kind))
    return group


def _list(kind: str) -> click.Command:
    @click.command("list", help=_HELP[kind]["list"])
    @click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON array.")
    @config_option
    @click.pass_context
    def command(ctx: click.Context, *, as_json: bool, config: str | None) -> None:
        from sluice.etl.operate import nodes

        settings = settings_of(ctx, config)
        found = nodes.list_nodes(settings, kind)
        if as_json:
            click.echo(json.dumps([node.to_dict() for node in found], indent=1, ensure_ascii=False))
            return
        captures = _capture_lines(found, settings)
        lines = [line for node in found for line in (_line(node), *captures.get(node.node_id, ()))]
        click.echo("\n".join(lines) or f"no {kind} in the registry")

    return command


def _capture_lines(found: Sequence[NodeStatus], settings: Settings) -> dict[str, list[str]]:
    """Return what each capture does, by node id of the pumps that answer."""
    from sluice.etl.operate.node_http import capture_lines, captures

    asked = [
        node
        for node in found
        if node.captured_cluster_id is not None and node.state not in ("paused", "offline")
    ]
    answers = captures([node.host for node in asked], settings.upstream.tls())
    now_ms = time.time_ns() // 1_000_000
    return {
        node.node_id: [f"{'':<24} {line}" for line in capture_lines(answer, now_ms)]
        for node, answer in zip(asked, answers, strict=True)
        if answer
    }


def _line(node: NodeStatus) -> str:
    through = f"through {node.max_commit_ts}"
    heard = f"heard of at {tso.time_text(node.update_ts)}" if node.update_ts else "never heard of"
    share = f", share {node.captured_share} of the tables" if node.captured_share else ""
    captures = (
        f"  captures cluster {node.captured_cluster_id}{share}"
        if node.captured_cluster_id is not None
        else ""
    )
    return f"{node.node_id:<24} {node.host:<22} {node.state:<8} {through:<27} {heard}{captures}"


def _leave(kind: str, action: str) -> click.Command:
    @click.command(action, help=_HELP[kind][action])
    @click.argument("node_id")
    @click.option(
        "--gone", is_flag=True, help="The process no longer exists: write its state in its place."
    )
    @config_option
    @click.pass_context
    def command(ctx: click.Context, node_id: str, *, gone: bool, config: str | None) -> None:
        from sluice.etl.operate import nodes

        click.echo(nodes.leave(settings_of(ctx, config), kind, node_id, action, is_gone=gone))

    return command


def _forget(kind: str) -> click.Command:
    @click.command("forget", help=_HELP[kind]["forget"])
    @click.argument("node_id")
    @config_option
    @click.pass_context
    def command(ctx: click.Context, node_id: str, config: str | None) -> None:
        from sluice.etl.operate import nodes

        click.echo(nodes.forget(settings_of(ctx, config), kind, node_id, operator_name()))

    return command


__all__ = ["group_of"]
