"""Provide the command `sluice`: one module for each command, loaded when it is asked for.

`group` is the click group, `main` runs it and maps errors to exit codes. Modules with `_` print
jobs and progress. A command parses, calls a function of the pipeline, and prints.
May import: everything.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
import traceback

import click

from sluice.cli._json_lines import add_json
from sluice.errors import DefectError, RequestError, ours

_COMMANDS = {
    "run": "Run the whole demo: start, replay recorded traffic, compare, stop.",
    "up": "Start the one-machine stack, or parts of it.",
    "down": "Stop the one-machine stack.",
    "status": "Show processes, checkpoint and lag.",
    "metrics": "Serve or push Prometheus metrics.",
    "pages": "Answer the pages in Airflow, apart from its api-server.",
    "replicate": "Land and apply as a service, with a standby.",
    "doctor": "Check everything that a pipeline needs, and name each way out.",
    "upgrade": "Check whether this version reads what another one wrote.",
    "top": "Show replication live: state, throughput and lag.",
    "pipelines": "List pipelines with state and lag.",
    "pause": "Pause landing or applying.",
    "resume": "Let landing or applying continue.",
    "run-until": "Apply up to an exact point in time and wait there.",
    "accept": "Apply a blocked batch anyway.",
    "ddl": "Skip or replace one DDL statement.",
    "txn": "Skip one transaction.",
    "overrides": "List and remove overrides of transactions and DDL.",
    "grants": "Print the GRANT statements for the downstream's user.",
    "takeover": "Take over the downstream from a Drainer or another pipeline.",
    "bootstrap": "Make an empty database a replica, from a dump or from TiDB.",
    "backfill": "Copy or compare tables again beside replication.",
    "verify": "Compare both sides at a live checkpoint.",
    "reapply": "Apply past windows again, elsewhere or to damaged rows.",
    "restore": "Restore tables as of a moment, from the archive.",
    "snapshot": "Manage snapshots of all tables, from which restores start.",
    "drill": "Try a restore, and measure how long it takes.",
    "quality": "Check data against expectations, and report.",
    "jobs": "List, pause, resume or cancel long-running jobs.",
    "handover": "Hand the downstream over to a Drainer.",
    "pumps": "List, pause, retire or remove pumps in the registry.",
    "drainers": "List, pause, retire or remove drainers and pipelines in it.",
    "relay": "Show windows of the relay log.",
    "archive": "Fill, compact, clean up and check the archive.",
    "as-of": "Show past tables, or differences between two moments.",
    "find": "Find past transactions and DDL.",
    "undo": "Take past transactions back, as SQL or in TiDB.",
    "init": "Write a sluice.toml, and check what it names.",
    "config": "Convert a drainer.toml, or check the rules about a table.",
    "replay": "Replay a recording into the running stack.",
    "spark": "Run a process of a Spark cluster.",
    "capture": "Check whether a pipeline can go on from TiKV without binlogs.",
    "pump": "Run a pump in place of TiDB's.",
    "programs": "Check and install what the one-machine stack needs.",
    "dags": "Print the folder of the DAG files for Airflow.",
    "completion": "Print what completes commands in a shell.",
    "man": "Print the manual page.",
    "bench": "Measure throughput and lag on this machine.",
}


class _Group(click.Group):
    """Load a command's module on first use: `--help` and `status` don't wait for other imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(
            f"{__name__}.{cmd_name.replace('-', '_')}"
        ).command
        return add_json(command, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        typed = args[0]
        if typed not in _COMMANDS and not typed.startswith("-"):
            from sluice.cli._suggestions import near

            alike = near(typed, _COMMANDS)
            ctx.fail(f"no command {typed!r}{alike or '; `sluice --help` lists them'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


_TRANSIENT = 3
_EXIT_CODES = """\b
Exit codes:
  0    done
  1    the request can't be done, or a difference was found; see the message
  2    wrong usage
  3    a transient error: try again
  4    replication has stopped until you act; the hint names the command
  130  interrupted
"""


@click.group(
    cls=_Group, epilog=_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--home",
    type=click.Path(file_okay=False),
    envvar="SLUICE_HOME",
    help="State folder of the one-machine stack [.sluice in a clone, else ~/.local/state/sluice].",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="sluice", prog_name="sluice")
@click.pass_context
def group(ctx: click.Context, *, home: str | None, debug: bool) -> None:
    """Replicate TiDB in near real time, in place of TiDB Binlog's Pump and Drainer."""
    ctx.obj = home


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` [the process's], and exit with one of `_EXIT_CODES`."""
    if argv is None:
        # Python's end looks through all objects for garbage: a fifth of what `status` takes.
        atexit.register(gc.freeze)
    arguments = sys.argv[1:] if argv is None else argv
    try:
        status = group.main(arguments, prog_name="sluice", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("sluice: interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        failure = ours(error)
        if isinstance(failure, DefectError) or "--debug" in arguments:
            traceback.print_exception(error)
        click.echo(f"sluice: {failure}", err=True)
        if not isinstance(failure, RequestError) and failure.hint not in str(failure):
            click.echo(f"hint: {failure.hint}", err=True)
        sys.exit(_TRANSIENT if failure.transient else failure.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


__all__ = ["main"]
