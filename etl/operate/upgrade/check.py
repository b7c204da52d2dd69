"""Check whether this version can take over from the one that runs, and how to go about it.

It reads and writes nothing, so the next version runs it from an environment of its own, before
anything is replaced, and the installed one afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sluice.errors import FAIL, OK, CheckResult, ours
from sluice.etl.cached_value import SourcePoller
from sluice.etl.operate.nodes import PUMPS, list_nodes
from sluice.etl.operate.upgrade.airflow_sides import check_airflow, check_provider
from sluice.etl.operate.upgrade.file_kinds import ARCHIVE, RELAY_LOG, Place
from sluice.etl.operate.upgrade.parties import (
    check_checkpoint,
    check_pumps,
    check_settings_keys,
    check_spark,
)
from sluice.etl.operate.upgrade.stored_files import KindSeen, look_at_files
from sluice.etl.settings import Settings, SettingsError, load_settings
from sluice.relay.jobs import RUNNING, Jobs
from sluice.relay.storage import open_storage
from sluice.tidb import NodeStatus
from sluice.tidb.table_name import abbreviate

__all__ = ["UpgradeReport", "check_upgrade"]

_TIMEOUT_S = 90.0
"""A Spark session that nobody has used takes seconds, and its server may be busy."""


@dataclass(slots=True)
class UpgradeReport:
    """What was found; `steps`: what to stop and replace, in order, empty if something fails."""

    results: list[CheckResult] = field(default_factory=list)
    kinds: list[KindSeen] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        """Return whether this version can't take over."""
        return any(each.state == FAIL for each in self.results)


def check_upgrade(
    path: Path, pump_reads: int, *, all_files: bool = False, airflow_python: str = ""
) -> UpgradeReport:
    """Return the report about the pipeline whose settings are at `path`.

    `pump_reads`: the newest format of a pump's data that this version reads; `all_files`: read
    every file, where else a sample of windows and segments is read; `airflow_python`: see
    `check_provider`. Never raises for what can't be read or reached: that is a result.
    """
    report = UpgradeReport()
    settings = _settings(path, report)
    if settings is None:
        return report
    for place, url in ((RELAY_LOG, settings.relay.url), (ARCHIVE, settings.archive_url)):
        kinds, results = _files(place, url, all_files=all_files)
        report.kinds += kinds
        report.results += results
    pumps: list[NodeStatus] = []
    asked: dict[str, Callable[[], Iterable[CheckResult]]] = {
        "checkpoint": lambda: list(check_checkpoint(settings, _cluster_id(settings))),
        "pumps": lambda: _pumps(settings, pumps, pump_reads),
        "spark": lambda: [check_spark(settings)],
        "airflow": lambda: [check_airflow(settings.airflow)],
        "provider": lambda: [check_provider(settings.airflow, airflow_python)],
    }
    found = SourcePoller().poll(asked, _TIMEOUT_S)
    for area in asked:
        if area in found.values:
            report.results += found.values[area]
        else:
            text = found.errors.get(area, f"no answer within {_TIMEOUT_S:.0f} s")
            report.results.append(
                CheckResult(area, FAIL, text, "`sluice doctor` says what is wrong")
            )
    if not report.has_failed:
        try:
            report.steps = _steps(settings, pumps)
        except Exception as error:
            reason = ours(error)
            report.results.append(CheckResult("jobs", FAIL, str(reason.args[0]), reason.hint))
    return report


def _settings(path: Path, report: UpgradeReport) -> Settings | None:
    try:
        report.results += check_settings_keys(path)
        settings = load_settings(path)
    except (OSError, ValueError) as error:
        if not report.results:
            hint = error.hint if isinstance(error, SettingsError) else "correct the file"
            report.results.append(CheckResult("settings", FAIL, str(error), hint))
        return None
    report.results.append(CheckResult("settings", OK, f"{path}: this version knows every key"))
    return settings


def _files(place: Place, url: str, *, all_files: bool) -> tuple[list[KindSeen], list[CheckResult]]:
    try:
        return look_at_files(open_storage(url), place, all_files=all_files)
    except Exception as error:
        reason = ours(error)
        return [], [CheckResult(place.name, FAIL, f"{url}: {reason.args[0]}", reason.hint)]


def _cluster_id(settings: Settings) -> int:
    """Return the cluster of the landed windows, 0 if none can be read."""
    try:
        last = settings.open_relay().last()
    except Exception:  # the relay log's own results have the reason
        return 0
    return last.cluster_id if last is not None else 0


def _pumps(settings: Settings, pumps: list[NodeStatus], data_reads: int) -> list[CheckResult]:
    pumps += [node for node in list_nodes(settings, PUMPS) if node.state != "offline"]
    return list(check_pumps(settings, pumps, data_reads))


def _steps(settings: Settings, pumps: list[NodeStatus]) -> list[str]:
    """Return what to stop, replace and start again, in order."""
    steps = []
    if pumps:
        names = abbreviate([pump.node_id for pump in pumps])
        alone = len(pumps) == 1
        steps.append(
            f"pumps, one at a time, each online again before the next: {names}"
            + (", which is the only one: start a second one first" if alone else "")
        )
    jobs = [
        job.id
        for job in Jobs.for_pipeline(settings.open_relay()).unfinished()
        if job.entry().state == RUNNING
    ]
    steps += [f"`sluice jobs pause {job}`" for job in jobs]
    section = settings.airflow
    is_service = section.replication == "service"
    if is_service and not section.service_queues:
        stop, start = (
            "stop the standby, then the active process, of `sluice replicate`",
            "start `sluice replicate` again",
        )
    else:
        queues = range(1, len(section.service_queues) + 1)
        own = [f"service_{number}" for number in queues] if is_service else ["replicate"]
        dags = [settings.dag_id(name) for name in own]
        stop = " and ".join(f"`airflow dags pause {dag}`" for dag in dags)
        start = " and ".join(f"`airflow dags unpause {dag}`" for dag in dags)
    others = "`archive`, `verify` and the other DAGs that are switched on"
    tasks = f"{section.python} and the provider in Airflow" if section.python else "Airflow"
    servers = "`sluice metrics`" + (" and `sluice pages`" if section.pages else "")
    return [
        *steps,
        f"{stop}, and pause {others}; wait until `sluice status` says that no task runs",
        f"replace the package in {tasks}, for Spark's workers, {servers} and the command",
        f"start the Spark Connect server again, and {servers} where they run",
        f"{start}, and unpause the other DAGs",
        *(f"`sluice jobs resume {job}`" for job in jobs),
        "`sluice upgrade --check` and `sluice status` again, with the new version",
    ]
