"""Make the Grafana boards: ``python -m monitoring.boards`` writes monitoring/boards/ again.

They ask a Prometheus that is chosen on the board, and nothing else. A test holds the files to what
this makes, and every metric they ask for to what the endpoint and the pump serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

__all__ = ["FOLDER", "boards", "texts"]

FOLDER = Path(__file__).parent / "boards"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_WIDTH, _HEIGHT = 8, 7
_SHOP = 'pipeline=~"$pipeline"'
_PUMP = 'instance=~"$instance"'
_RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """A graph, or with `now` a number: its queries by legend."""

    title: str
    unit: str
    queries: Mapping[str, str]
    text: str = ""
    now: bool = False


class Row(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


def _shop(name: str, more: str = "") -> str:
    return f"{name}{{{_SHOP}{', ' if more else ''}{more}}}"


def _pump(name: str, more: str = "") -> str:
    return f"{name}{{{_PUMP}{', ' if more else ''}{more}}}"


def _rate(series: str) -> str:
    return f"rate({series}{_RATE})"


def _quantile(part: float, series: str, by: str) -> str:
    return f"histogram_quantile({part}, sum by (le, {by}) ({_rate(series)}))"


_REPLICATION = (
    Row(
        "How it stands",
        (
            Panel(
                "Lag",
                "s",
                {"{{pipeline}}": _shop("sluice_lag_seconds")},
                "clock minus checkpoint",
                now=True,
            ),
            Panel(
                "Rows applied",
                "rowsps",
                {"{{pipeline}}": _rate(_shop("sluice_changes_total", 'stage="applied"'))},
                "row changes a second",
                now=True,
            ),
            Panel(
                "Waits for people",
                "none",
                {
                    "stopped {{pipeline}} {{task}}": _shop("sluice_task_stopped"),
                    "refused {{pipeline}}": f"{_shop('sluice_refused')} > 0",
                    "decisions {{pipeline}}": f"{_shop('sluice_overrides_waiting')} > 0",
                },
                "tasks that have stopped, refusals, decisions to come",
                now=True,
            ),
        ),
    ),
    Row(
        "Lag and pace",
        (
            Panel(
                "Behind the clock",
                "s",
                {
                    "{{pipeline}} downstream": _shop("sluice_lag_seconds"),
                    "{{pipeline}} relay log": _shop("sluice_land_lag_seconds"),
                    "{{pipeline}} landed, not applied": _shop("sluice_waiting_seconds"),
                },
            ),
            Panel(
                "Row changes",
                "rowsps",
                {"{{pipeline}} {{kind}}": _rate(_shop("sluice_rows_total"))},
            ),
            Panel(
                "Transactions",
                "ops",
                {"{{pipeline}} {{stage}}": _rate(_shop("sluice_transactions_total"))},
            ),
            Panel(
                "Windows", "ops", {"{{pipeline}} {{stage}}": _rate(_shop("sluice_windows_total"))}
            ),
            Panel(
                "Stages, 95 %",
                "s",
                {
                    "{{pipeline}} {{stage}}": _quantile(
                        0.95, _shop("sluice_stage_seconds_bucket"), "pipeline, stage"
                    ),
                },
                "land a window; prepare, send, commit a batch",
            ),
            Panel(
                "Delay of checkpoints, 99 %",
                "s",
                {
                    "{{pipeline}}": _quantile(
                        0.99, _shop("binlog_drainer_checkpoint_delay_seconds_bucket"), "pipeline"
                    ),
                },
            ),
            Panel(
                "DDL",
                "short",
                {"{{pipeline}} {{stage}}": f"increase({_shop('sluice_ddls_total')}[10m])"},
                "in 10 min",
            ),
            Panel(
                "Errors and retries",
                "short",
                {
                    "{{pipeline}} {{type}}": (
                        f"increase({_shop('binlog_drainer_error_count')}[10m])"
                    ),
                    "{{pipeline}} {{stage}} began anew": (
                        f"increase({_shop('sluice_retries_total')}[10m])"
                    ),
                },
                "in 10 min",
            ),
            Panel(
                "Tables with the most changes",
                "rowsps",
                {
                    "{{table}} {{kind}}": f"topk(10, {_rate(_shop('sluice_table_rows_total'))})",
                },
            ),
        ),
    ),
    Row(
        "Pumps and parts",
        (
            Panel(
                "Pumps behind the clock",
                "s",
                {"{{pipeline}} {{nodeID}}": _shop("sluice_pump_lag_seconds")},
            ),
            Panel(
                "States",
                "none",
                {
                    "{{pipeline}} {{part}} {{state}}": f"{_shop('sluice_part_state')} == 1",
                    "{{pipeline}} {{nodeID}} {{state}}": f"{_shop('sluice_pump_state')} == 1",
                },
            ),
            Panel(
                "Who answers",
                "none",
                {
                    "{{pipeline}} {{party}}": _shop("sluice_answers"),
                    "{{pipeline}} readable": _shop("sluice_pipeline_readable"),
                },
            ),
            Panel(
                "Since tasks said something",
                "s",
                {"{{pipeline}} {{task}}": _shop("sluice_silent_seconds")},
            ),
        ),
    ),
    Row(
        "Equal, and good",
        (
            Panel(
                "Rows that differ",
                "none",
                {"{{pipeline}}": _shop("sluice_verification_differences")},
            ),
            Panel(
                "Oldest verification of a table",
                "s",
                {"{{pipeline}}": _shop("sluice_verification_age_seconds")},
            ),
            Panel(
                "Continuous verification",
                "rowsps",
                {
                    "{{pipeline}} rows compared": _rate(_shop("sluice_verification_rows_total")),
                    "{{pipeline}} stands still": (
                        f"{_shop('sluice_verification_stalled_seconds')} > 0"
                    ),
                },
                "rows compared a second, and for how many seconds it has had some and could compare"
                " none",
            ),
            Panel(
                "Expectations not met",
                "none",
                {"{{pipeline}} {{severity}}": _shop("sluice_quality_failed")},
            ),
        ),
    ),
    Row(
        "Past and room",
        (
            Panel(
                "Bytes",
                "bytes",
                {
                    "{{pipeline}} relay log": _shop("sluice_relay_bytes"),
                    "{{pipeline}} archive": _shop("sluice_archive_bytes"),
                    "{{pipeline}} free": _shop("sluice_disk_free_bytes"),
                },
            ),
            Panel("Not archived yet", "s", {"{{pipeline}}": _shop("sluice_archive_lag_seconds")}),
            Panel(
                "How far back one can restore",
                "s",
                {"{{pipeline}}": _shop("sluice_restorable_seconds")},
            ),
        ),
    ),
    Row(
        "Jobs",
        (
            Panel("Jobs", "none", {"{{pipeline}} {{kind}} {{state}}": _shop("sluice_jobs")}),
            Panel(
                "Pace",
                "rowsps",
                {"{{pipeline}} {{job}}": _shop("sluice_job_rows_per_second")},
                "restores, backfills …",
            ),
            Panel("Time left", "s", {"{{pipeline}} {{job}}": _shop("sluice_job_left_seconds")}),
        ),
    ),
)

_STORE = "binlog_pump_storage_"
_PUMPS = (
    Row(
        "What TiDB sees",
        (
            Panel(
                "WriteBinlog",
                "ops",
                {
                    "{{instance}} {{label}}": _rate(
                        _pump("binlog_pump_rpc_duration_seconds_count", 'method="WriteBinlog"')
                    ),
                },
            ),
            Panel(
                "WriteBinlog, 99 %",
                "s",
                {
                    "{{instance}}": _quantile(
                        0.99,
                        _pump("binlog_pump_rpc_duration_seconds_bucket", 'method="WriteBinlog"'),
                        "instance",
                    ),
                },
            ),
            Panel(
                "Lost calls",
                "short",
                {"{{instance}}": f"increase({_pump('binlog_pump_loss_binlog_count')}[10m])"},
            ),
        ),
    ),
    Row(
        "The store",
        (
            Panel("Written", "Bps", {"{{instance}}": _rate(_pump(f"{_STORE}record_bytes_total"))}),
            Panel(
                "Time to be durable, 99 %",
                "s",
                {
                    "{{instance}} {{type}}": _quantile(
                        0.99, _pump(f"{_STORE}write_binlog_duration_time_bucket"), "instance, type"
                    ),
                },
            ),
            Panel(
                "Disk",
                "bytes",
                {
                    "{{instance}} {{type}}": _pump(f"{_STORE}storage_size_bytes"),
                    "{{instance}} value log": _pump(f"{_STORE}value_log_bytes"),
                },
            ),
            Panel(
                "Behind the clock",
                "s",
                {
                    "{{instance}} readable": f"time() - {_pump(f'{_STORE}max_commit_ts')} / 1000",
                    "{{instance}} given up": f"time() - {_pump(f'{_STORE}gc_ts')} / 1000",
                },
            ),
            Panel(
                "Without a verdict",
                "short",
                {
                    "{{instance}}": _pump(f"{_STORE}pending_prewrites"),
                    "{{instance}} TiKV asked": _rate(_pump(f"{_STORE}query_tikv_count")),
                },
            ),
            Panel(
                "Errors",
                "short",
                {
                    "{{instance}} {{type}}": f"increase({_pump(f'{_STORE}error_count')}[10m])",
                    "{{instance}} failed": _pump(f"{_STORE}failed"),
                    "{{instance}} writable": _pump(f"{_STORE}writable"),
                },
            ),
        ),
    ),
)


def _query(legend: str, expr: str, number: int) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + number))


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel = (
        stat.Panel() if panel.now else timeseries.Panel().fill_opacity(8)
    )
    made = made.title(panel.title).description(panel.text).unit(panel.unit).datasource(_SOURCE)
    for number, (shown, expr) in enumerate(panel.queries.items()):
        made = made.with_target(_query(shown, expr, number))
    return made.span(_WIDTH).height(_HEIGHT)


def _board(title: str, uid: str, label: str, metric: str, rows: Sequence[Row]) -> str:
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["sluice"])
        .time("now-1h", "now")
        .refresh("30s")
        .with_variable(
            dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus")
        )
        .with_variable(
            dashboard.QueryVariable(label)
            .label(label)
            .datasource(_SOURCE)
            .query(f"label_values({metric}, {label})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*")
        )
    )
    for row in rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def boards() -> dict[str, Sequence[Row]]:
    """Return the rows of each board, by the file's name."""
    return {"sluice.json": _REPLICATION, "pumps.json": _PUMPS}


def texts() -> dict[str, str]:
    """Return the boards' files by name."""
    return {
        "sluice.json": _board(
            "Sluice", "sluice", "pipeline", "sluice_pipeline_readable", _REPLICATION
        ),
        "pumps.json": _board(
            "Sluice: pumps", "sluice-pumps", "instance", f"{_STORE}writable", _PUMPS
        ),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
