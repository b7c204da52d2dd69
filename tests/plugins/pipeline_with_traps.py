"""A pipeline whose names, values and errors are what attackers would write into them, for pages to show."""

from dataclasses import dataclass
from pathlib import Path

from etl.settings import load_settings
from relay import RelayLog
from relay.jobs import FAILED, Done, Job, Jobs, Runner, TableProgress, Touches

TRAP = "<img src=x onerror=\"window.caught='{0}'\"><script>window.caught='{0}'</script>"
"""Text that becomes a fact about the page if anything takes it for HTML."""


@dataclass(frozen=True)
class Trapped:
    """The settings' file, and the jobs that are in its relay log."""

    config: Path
    failed: Job
    running: Job
    runner: Runner


def pipeline_with_traps(folder: Path) -> Trapped:
    """Nothing is landed, and neither upstream nor downstream answers; there are two jobs."""
    config = folder / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{folder}/relay"\n[downstream]\nhost ='
        ' "127.0.0.1"\nport = 1\n'
    )
    jobs = Jobs(RelayLog.open(load_settings(config).relay.url).storage)
    table = f"shop.{TRAP.format('table')}"
    touches = Touches("there", (table,))
    failed = jobs.create("backfill", {"tables": [table], "why": TRAP.format("asked")}, touches, TRAP.format("by"))
    with failed.run_as(Runner(TRAP.format("runner"))) as run:
        run.begin_with({table: TableProgress(Done(), 1000, 10, 100)})
        run.did(table, Done(10, 100, 1))
        run.end(FAILED, said=TRAP.format("said"), way_out=TRAP.format("way out"))
    other = Touches("there", ("shop.orders",))
    running = jobs.create("restore", {"until": ""}, other, "airflow manual__1")
    return Trapped(config, failed, running, Runner("a test"))
