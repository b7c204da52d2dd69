"""The command ``sluice``: one module a command, loaded when it is asked for."""

from __future__ import annotations

import importlib
import sys
import traceback

import click

from sluice.errors import DefectError, RequestError, ours

_COMMANDS = {
    "run": "Start everything, replay recorded traffic, compare, stop.",
    "up": "Start the stack, or the parts of it that don't run.",
    "down": "Stop the stack.",
    "status": "What runs, where, and how far replication is.",
    "metrics": "Serve what Prometheus asks, or push it.",
    "top": "How replication stands, live.",
    "pipelines": "Those there are, how each stands, how far it is behind.",
    "pause": "Have landing and applying wait.",
    "resume": "Have landing and applying go on.",
    "run-until": "Take the downstream to an exact point in time and wait there.",
    "accept": "Go on from a refusal all the same.",
    "ddl": "Skip or replace one DDL statement.",
    "txn": "Skip one transaction.",
    "decisions": "What was decided about transactions and DDL.",
    "grants": "The rights that the downstream's user needs, as SQL.",
    "takeover": "Make the downstream this pipeline's, in a Drainer's place.",
    "bootstrap": "Make an empty database a replica, from a dump.",
    "backfill": "Copy tables again beside replication, or compare them.",
    "verify": "Compare both sides at a live checkpoint: are they equal?",
    "reapply": "Past windows once more, to another downstream or damaged rows.",
    "restore": "Tables as they were at a moment, from the archive.",
    "base": "All tables as of one moment: where a restore begins.",
    "drill": "Try whether restoring works, and how long it takes.",
    "quality": "Is the data what it should be? Expectations, and reports of them.",
    "jobs": "What takes long: how far it is, pause it, go on, give it up.",
    "handover": "Leave the downstream to a Drainer.",
    "pumps": "The pumps in the registry: list, pause, take offline, forget.",
    "drainers": "The drainers in the registry, pipelines among them: likewise.",
    "relay": "Look into the relay log.",
    "archive": "The past: bring it into the archive, compact and check it.",
    "as-of": "Tables of the past, and what became different between two moments.",
    "find": "Which transaction did it, and when.",
    "undo": "The SQL that takes one transaction back.",
    "config": "Turn a drainer.toml into a sluice.toml.",
    "replay": "Replay a recording into the running stack.",
    "spark": "Run a process of a Spark cluster.",
    "pump": "Run a pump, in the place of TiDB's.",
    "programs": "What the one-machine stack needs of this machine.",
    "dags": "Where the DAG files for Airflow are.",
    "bench": "Measure throughput and lag on this machine.",
}


class _Group(click.Group):
    """Loads a command's module when it is used, so that `--help` and `status` don't wait for what others import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


_TRANSIENT = 3
_EXIT_CODES = """\b
Exit codes:
  0    done
  1    the request can't be done, or a difference was found; the text says which
  2    wrong usage
  3    a transient error: try again
  4    replication has stopped until you act; the hint says what to do
  130  interrupted
"""


@click.group(cls=_Group, epilog=_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
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
    """Sluice replicates TiDB in near real time, in the place of TiDB Binlog's Pump and Drainer."""
    ctx.obj = home


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (that of the process if None) and end the process; see `_EXIT_CODES`."""
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
        told = ours(error)
        if isinstance(told, DefectError) or "--debug" in arguments:
            traceback.print_exception(error)
        click.echo(f"sluice: {told}", err=True)
        if not isinstance(told, RequestError) and told.way_out not in str(told):
            click.echo(f"hint: {told.way_out}", err=True)
        sys.exit(_TRANSIENT if told.transient else told.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


__all__ = ["main"]
