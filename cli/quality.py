"""sluice quality: check whether the data is what it should be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli._moments import MOMENT, MOMENT_FORMS
from sluice.cli._settings import config_option, settings_of
from sluice.cli._suggestions import Choice

if TYPE_CHECKING:
    from sluice.expectations.results import QualityRun
    from sluice.expectations.suite import Suite
    from sluice.expectations.suite_files import WriteResult

_STATES = {"passed": "green", "warned": "yellow"}


@click.group("quality")
def command() -> None:
    """Check whether the data meets expectations: rules for tables, checked by Great Expectations.

    They are kept as files. `init` proposes expectations, `run` checks them, `docs` shows where the
    reports are. `propose` names columns that look like personal data.
    """


@command.command("init")
@click.argument("tables", nargs=-1)
@click.option("--force", is_flag=True, help="Also overwrite edited files.")
@config_option
@click.pass_context
def init(ctx: click.Context, *, tables: tuple[str, ...], force: bool, config: str | None) -> None:
    """Propose expectations for TABLES [all, and replication itself].

    TABLES are names (schema.table) downstream, also with * and ?. The expectations come from the
    schema and from a profile of the rows that the server computes at the checkpoint. Each table
    gets a file in the folder [quality] suites: edit the files, and keep them in git. Edited files
    are not overwritten.
    """
    from sluice.expectations.suite_files import WriteResult, propose_suites

    settings = settings_of(ctx, config)
    edited = 0

    def say(suite: Suite, path: Path, written: WriteResult) -> None:
        nonlocal edited
        edited += written is WriteResult.EDITED
        click.echo(f"{suite.name}: {len(suite.expectations)} expectations, {path}: {written.value}")

    propose_suites(settings, tables, say, over_edited=force)
    if edited:
        click.echo(
            f"{edited} files were edited and stay as they are; --force puts the proposal in their"
            " place"
        )


@command.command("propose")
@click.argument("tables", nargs=-1)
@config_option
@click.pass_context
def propose(ctx: click.Context, *, tables: tuple[str, ...], config: str | None) -> None:
    """Propose masks for columns of TABLES [all] that look like personal data.

    TABLES are names (schema.table) upstream, also with * and ?. Columns that a rule of
    [[filter.columns]] leaves out, keeps, renames or masks aren't named. The others are judged by
    their names, in English and German, and by the values in the first rows downstream, if there are
    any yet. The proposal is text for the settings file. It shows no value.
    """
    from sluice.errors import SluiceError
    from sluice.etl.copy.copy_source_cluster import SourceCluster
    from sluice.expectations.mask_proposals import downstream_sample, propose_masks, rules_text
    from sluice.expectations.server_dataset import open_downstream_dataset
    from sluice.tidb.table_name import fits

    settings = settings_of(ctx, config)
    with SourceCluster.connect(settings.upstream) as cluster:
        definitions = cluster.definitions(cluster.pd.tso()).of_users()
    chosen = [
        table
        for table in definitions.tables
        if not tables or any(fits(table.full_name, glob) for glob in tables)
    ]
    try:
        with open_downstream_dataset(settings) as place:
            found = list(propose_masks(settings, chosen, downstream_sample(settings, place)))
    except SluiceError as error:
        click.echo(f"by names alone, as no values can be read downstream: {error}", err=True)
        found = list(propose_masks(settings, chosen, lambda table, columns: {}))
    click.echo(
        rules_text(settings, found) or "no column that no rule mentions looks like personal data"
    )


@command.command("run")
@click.argument("suites", nargs=-1)
@click.option(
    "--on",
    type=Choice(("downstream", "lake", "copy")),
    default="downstream",
    show_default=True,
    help="What to check: the downstream at its checkpoint, the lake, or a copy that a restore has"
    " made.",
)
@click.option(
    "--as-of",
    type=MOMENT,
    help=f"With --on lake: as of this: {MOMENT_FORMS} [the end of the archive].",
)
@click.option(
    "--copy", "copy_file", type=click.Path(exists=True, dir_okay=False),
    help="With --on copy: settings file whose [downstream] is the copy's server.",
)  # fmt: skip
@config_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    suites: tuple[str, ...],
    on: str,
    as_of: int | None,
    copy_file: str | None,
    config: str | None,
) -> int:
    """Check whether the expectations of SUITES [all] are met.

    SUITES are schema.table or replication, also with * and ?. Exit code 1 if an expectation that
    fails the run isn't met, 4 if applying was paused because of one; warnings leave it 0.
    """
    from sluice.etl.settings import read_target
    from sluice.expectations.run import QualityRequest, run_quality

    if (on == "copy") != bool(copy_file):
        raise click.UsageError("--on copy and --copy FILE go together", ctx)
    if as_of is not None and on != "lake":
        raise click.UsageError("--as-of goes with --on lake", ctx)
    settings = settings_of(ctx, config)
    request = QualityRequest(on, suites, as_of or 0, read_target(copy_file) if copy_file else {})
    done = run_quality(settings, request, _say)
    click.echo(f"report   {done.index}")
    if done.paused:
        click.echo("applying is paused; `sluice resume` lets it go on")
        return 4
    return 0 if all(suite.state in _STATES for suite in done.suites) else 1


@command.command("docs")
@config_option
@click.pass_context
def docs(ctx: click.Context, *, config: str | None) -> None:
    """Show the last run's results, and the path of its report."""
    from sluice.expectations.results import QualityResults

    results = QualityResults(settings_of(ctx, config))
    for suite in results.last():
        _say(suite)
    if results.docs().read("index.html") is None:
        click.echo("there was no run yet: `sluice quality run`")
    else:
        click.echo(f"report   {results.docs_index()}")


def _say(suite: QualityRun) -> None:
    state = click.style(f"{suite.state:8}", fg=_STATES.get(suite.state, "red"))
    met = suite.expectations - suite.failed
    click.echo(f"{state} {suite.suite}: {met} of {suite.expectations} met, {suite.seconds:.1f} s")
    if suite.message:
        click.echo(f"         {suite.message}")
    for failure in suite.failures:
        about = f" {failure.about}" if failure.about else ""
        click.echo(
            f"         {failure.severity:5} {failure.expectation}{about}: {failure.observed}"
        )
