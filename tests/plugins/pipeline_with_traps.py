"""A pipeline whose names, values and errors are what attackers would write into them, for pages to
show.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from sluice.etl.settings import load_settings
from sluice.relay import RelayLog
from sluice.relay.jobs import FAILED, Job, JobCounts, Jobs, Runner, TableProgress, WriteScope
from sluice.relay.measures import CounterStore, TableCount
from sluice.relay.quality import FailedExpectation, QualityRun, QualityRuns
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb.table_name import full_name
from tests.etl.story import Story, table
from tests.etl.story import column as typed

TRAP = "<img src=x onerror=\"window.caught='{0}'\"><script>window.caught='{0}'</script>"
"""Text that becomes a fact about the page if anything takes it for HTML."""

MANY = 1_000_000
"""Characters of a value."""


@dataclass(frozen=True)
class Trapped:
    """The settings' file, and the jobs that are in its relay log."""

    config: Path
    failed: Job
    running: Job
    runner: Runner
    inserted: int
    """Commit ts of rows that are what attackers would write, into a table and columns that are
    called so.
    """
    updated: int
    """Commit ts of a change from NULL to the empty text."""


def pipeline_with_traps(folder: Path) -> Trapped:
    """Some is landed, and neither upstream nor downstream answers; there are two jobs."""
    config = folder / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{folder}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    jobs = Jobs(RelayLog.open(load_settings(config).relay.url).storage)
    table = f"shop.{TRAP.format('table')}"
    touches = WriteScope("there", (table,))
    failed = jobs.create(
        "backfill", {"tables": [table], "why": TRAP.format("asked")}, touches, TRAP.format("by")
    )
    with failed.run(Runner(TRAP.format("runner"))) as run:
        run.set_totals({table: TableProgress(JobCounts(), 1000, 10, 100)})
        run.did(table, JobCounts(10, 100, 1))
        run.end(FAILED, message=TRAP.format("message"), hint=TRAP.format("way out"))
    other = WriteScope("there", ("shop.orders",))
    running = jobs.create("restore", {"until": ""}, other, "airflow manual__1")
    _looked_at(
        RelayLog.open(load_settings(config).relay.url), folder / "relay" / "quality" / "docs"
    )
    return Trapped(config, failed, running, Runner("a test"), *_landed(folder))


def _landed(folder: Path) -> tuple[int, int]:
    story = Story(None, folder)  # type: ignore[arg-type] # nothing is applied
    relay = RelayLog.open(story.url)
    column, statement = TRAP.format("column"), TRAP.format("statement")
    third = replace(typed(3, "x longtext"), name=column)
    trap = story.create(
        table(11, TRAP.format("name"), "id int", "v longtext", third, primary="id"), statement
    )
    story.insert(
        trap,
        {
            "id": 1,
            "v": f'"><script>window.caught=1</script>{TRAP.format("value")}',
            column: "abc\u202etxt.exe",
        },
        {"id": 2, "v": "x" * MANY, column: None},
    )
    inserted = relay.last()
    row = {"id": 3, "v": None, column: None}
    story.insert(trap, row)
    story.update(trap, row, {**row, "v": ""})
    updated = relay.last()
    assert inserted is not None and updated is not None
    return inserted.hi, updated.hi


def _looked_at(relay: RelayLog, docs: Path) -> None:
    """What was counted, verified and expected, all of it with traps in it."""
    name = full_name("d", TRAP.format("name"))
    CounterStore(relay).add_tables("apply-00000000", {name: TableCount(3, 1)}, "p", 1)
    verified = TableVerified(
        name, 7, 1_790_000_000_000, 3, 30, 0, "upstream", "verify-1", TRAP.format("problem")
    )
    Verifications(relay).note(
        VerifiedRun("verify-1", 7, 1_790_000_000_000, 1.0, "upstream", (verified,))
    )
    failure = FailedExpectation(
        TRAP.format("expectation"), TRAP.format("about"), "fail", TRAP.format("observed")
    )
    run = "1790000000000-0123456789ab"
    suite = QualityRun(
        "1",
        1_790_000_000_000,
        name,
        "downstream",
        "failed",
        3,
        1,
        "fail",
        0.5,
        run,
        page="a/page.html",
        failures=(failure,),
        message=TRAP.format("message"),
    )
    QualityRuns(relay.storage).note(run, [suite], 10)
    (docs / "a").mkdir(parents=True)
    (docs / "index.html").write_text(
        f'<p>Docs</p><a href="a/page.html">a page</a>{TRAP.format("docs")}'
    )
    (docs / "a" / "page.html").write_text(f"<p>A page</p>{TRAP.format('docs')}")
