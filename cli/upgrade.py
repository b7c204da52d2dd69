"""sluice upgrade: check whether this version can take over from the one that runs."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import click

from sluice.cli._check_results import json_option, print_checks
from sluice.cli._settings import choose_pipeline, config_option
from sluice.errors import FAIL, OK, WARN, CheckResult, SluiceError

_MAX_PACKAGES = 5


@click.command("upgrade")
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    required=True,
    help="Say what this version finds and reads; nothing is changed.",
)
@click.option("--all", "all_files", is_flag=True, help="Read every window record and segment.")
@click.option(
    "--data-dir",
    "data_dirs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    help="Check a pump's data directory on this machine, and no pipeline. Repeatable.",
)
@click.option(
    "--airflow-python",
    default="",
    metavar="PROGRAM",
    help="Interpreter of Airflow's environment [that of the program airflow in $PATH].",
)
@json_option
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    check_only: bool,
    all_files: bool,
    data_dirs: tuple[Path, ...],
    airflow_python: str,
    as_json: bool,
    config: str | None,
) -> int:
    """Check whether this version reads what a running pipeline and its pumps have written.

    Run it from the next version, in an environment of its own, before anything is replaced, and
    once more afterwards. It reads the settings, the files in the relay log and the archive, and the
    checkpoint; it asks the pumps, a worker of Spark, the environment of Airflow's tasks, and what
    Airflow itself has installed. It lists what to stop and to replace, in order. Exit code 1 if
    anything fails; a warning alone is 0.
    """
    version = metadata.version("sluice")
    if data_dirs:
        results = [_data_directory(path) for path in data_dirs]
        return print_checks(results, as_json=as_json, version=version, kinds=[], steps=[])
    from sluice.etl.operate.upgrade import check_upgrade
    from sluice.pump_service.store.data_format import FORMAT

    chosen = choose_pipeline(ctx, config)
    click.echo(f"Sluice {version} on the pipeline of {chosen.path} ({chosen.why})", err=True)
    report = check_upgrade(chosen.path, FORMAT, all_files=all_files, airflow_python=airflow_python)
    code = print_checks(
        [*report.results, *_packages()],
        as_json=as_json,
        version=version,
        kinds=[kind.to_json() for kind in report.kinds],
        steps=report.steps,
    )
    if not as_json and report.steps:
        click.echo(f"to upgrade to Sluice {version}, in this order:")
        for number, step in enumerate(report.steps, 1):
            click.echo(f"  {number}. {step}")
    return code


def _data_directory(path: Path) -> CheckResult:
    from sluice.pump_service.store.data_format import FORMAT, refuse_newer

    area = "pump"
    try:
        found = refuse_newer(path)
    except SluiceError as error:
        return CheckResult(area, FAIL, str(error.args[0]), error.hint)
    if not (path / "value").is_dir():
        return CheckResult(
            area, FAIL, f"{path} has no value log", "name the data-dir of the pump's settings"
        )
    return CheckResult(area, OK, f"{path}: format {found}, this version reads 1 to {FORMAT}")


def _packages() -> list[CheckResult]:
    """Return the result about packages that this release wasn't tested with."""
    from sluice.devstack.repository import untested
    from sluice.tidb.table_name import abbreviate

    different = [
        f"{name} {there} (tested with {tested})" for name, (there, tested) in untested().items()
    ]
    if not different:
        return []
    return [
        CheckResult(
            "packages",
            WARN,
            "other versions than this release was tested with:"
            f" {abbreviate(different, _MAX_PACKAGES)}",
            "`pip install -r requirements.txt` of the release; `sluice programs` lists all",
        )
    ]
