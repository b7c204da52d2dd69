"""Check what a pipeline talks to: whether this version fits it, and reads what it keeps.

Each function is one check; what doesn't answer is a result.
"""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from sluice.errors import FAIL, OK, WARN, CheckResult, ours
from sluice.etl.downstream import CheckpointError, ChunkResults, MySQLSession
from sluice.etl.downstream.checkpoint import ROW_FORMAT
from sluice.etl.operate.node_http import ask_node
from sluice.etl.operate.status import read_checkpoint_in_time
from sluice.etl.settings import Downstream, Kafka, Settings
from sluice.etl.settings.sluice_toml import RULE_SECTIONS, known_sections
from sluice.etl.spark.errors import SparkUnavailableError
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.reachability import check_reachable
from sluice.etl.spark.session_target import BATCH, SessionTarget
from sluice.etl.spark.version_check import VersionChecked, is_other_sluice
from sluice.tidb import NodeStatus, PDClient

__all__ = [
    "check_checkpoint",
    "check_pumps",
    "check_settings_keys",
    "check_spark",
]

_PUMP_TIMEOUT_S, _PD_TIMEOUT_S, _SPARK_TIMEOUT_S = 3.0, 5.0, 60.0
_MAX_ASKED_AT_ONCE = 16


def check_settings_keys(path: Path) -> Iterator[CheckResult]:
    """Yield every section and key of a settings file that this version doesn't know.

    Loading the file stops at the first. Raises OSError, ValueError if it is no TOML.
    """
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    sections = known_sections()
    for section, raw in document.items():
        if section in RULE_SECTIONS or section == "drainer-config":
            continue
        kind = sections.get(section)
        if kind is None:
            yield _unknown_key(path, f"[{section}]", section, [*sections, *RULE_SECTIONS])
        elif isinstance(raw, dict):
            known = [hint.replace("_", "-") for hint in typing.get_type_hints(kind)]
            for key in raw:
                if key not in known:
                    yield _unknown_key(path, f"[{section}] {key}", key, known)


def _unknown_key(path: Path, text: str, word: str, known: list[str]) -> CheckResult:
    close = difflib.get_close_matches(word, known, n=1)
    return CheckResult(
        "settings",
        FAIL,
        f"{path}: this version has no {text}",
        f"write {close[0]}, or take it out" if close else "take it out; the changelog says why",
    )


def check_checkpoint(settings: Settings, cluster_id: int) -> Iterator[CheckResult]:
    """Yield whether the checkpoint, and the results of chunks beside it, can be read.

    `cluster_id`: that of the landed windows, 0 before the first; PD knows it then.
    """
    area = "checkpoint"
    try:
        if not cluster_id:
            upstream = settings.upstream
            with PDClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=_PD_TIMEOUT_S) as pd:
                cluster_id = pd.cluster_id
        found = read_checkpoint_in_time(settings.target, cluster_id)
        place = settings.downstream_name
        if found is None:
            yield CheckResult(area, OK, f"{place}: none yet")
        else:
            text = f"{place}: format {found.row_format}, this version reads 1 to {ROW_FORMAT}"
            yield CheckResult(area, OK, text)
        if isinstance(settings.target, Downstream):
            _check_chunk_results(settings.target)
        elif isinstance(settings.target, Kafka) and settings.target.has_resume_record:
            # the client of Kafka is there for pipelines that write to topics
            from sluice.etl.downstream.sinks.kafka import sent_through

            through = sent_through(settings.target, cluster_id)
            text = "format 1, this version reads 1" if through else "nothing was sent yet"
            yield CheckResult(area, OK, f"the resume record in its topic: {text}")
    except CheckpointError as error:
        yield CheckResult(area, FAIL, str(error.args[0]), error.hint)
    except Exception as error:
        reason = ours(error)
        yield CheckResult(area, FAIL, f"it can't be read: {reason.args[0]}", reason.hint)


def _check_chunk_results(downstream: Downstream) -> None:
    session = MySQLSession(downstream)
    try:
        session.connect()
        ChunkResults(downstream.checkpoint_schema).check_formats(session)
    finally:
        session.close()


def check_pumps(
    settings: Settings, pumps: list[NodeStatus], data_reads: int
) -> Iterator[CheckResult]:
    """Yield for each registered pump that should run which version it is.

    `data_reads`: the newest format of a pump's data that this version reads. Pumps and pipelines of
    different versions work together, so another version is no failure.
    """
    tls = settings.upstream.tls()
    asked = [pump for pump in pumps if pump.state not in ("offline", "paused")]

    def ask(pump: NodeStatus) -> CheckResult:
        try:
            about = ask_node(pump.host, "GET", "/about", tls, _PUMP_TIMEOUT_S)
        except (OSError, ValueError) as error:
            return CheckResult(
                "pumps", WARN, f"{pump.node_id} doesn't answer at {pump.host}: {error}",
                "`sluice pumps list`; check its data directory on its host:"
                " `sluice upgrade --check --data-dir DIRECTORY`",
            )  # fmt: skip
        if about is None:
            return CheckResult(
                "pumps", OK,
                f"{pump.node_id}: an original pump, or a version before `/about`; its binlogs are"
                " read as TiDB's drainer does",
            )  # fmt: skip
        form = about.get("format")
        text = (
            f"{pump.node_id}: Sluice {about.get('version')}, its data has format {form}, this"
            f" version reads 1 to {data_reads}"
        )
        if not isinstance(form, int) or form > data_reads:
            return CheckResult("pumps", FAIL, text, "leave this pump in the version that it has")
        return CheckResult("pumps", OK, text)

    if not asked:
        return
    with ThreadPoolExecutor(min(len(asked), _MAX_ASKED_AT_ONCE)) as pool:
        yield from pool.map(ask, asked)


def check_spark(settings: Settings) -> CheckResult:
    """Run one task in a worker of the Spark Connect server, which compares its versions."""
    server = settings.spark
    calls = JobCalls(
        SessionTarget(server, BATCH, settings.relay.url),
        VersionChecked.wrap(_answer),
        _SPARK_TIMEOUT_S,
    )
    try:
        check_reachable(server)
        calls([""])
    except Exception as error:
        reason = ours(error)
        if is_other_sluice(str(reason)):
            return CheckResult(
                "spark", WARN, str(reason.args[0]),
                "right before the upgrade; with it, replace the package of Spark's workers, and"
                " start the Spark Connect server again",
            )  # fmt: skip
        state = WARN if isinstance(error, SparkUnavailableError) else FAIL
        return CheckResult("spark", state, f"not checked: {reason.args[0]}", reason.hint)
    finally:
        calls.close()
    return CheckResult(
        "spark", OK, f"{server.remote}: its workers' Python, packages and Sluice fit this version"
    )


def _answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what came, in a worker."""
    yield from batches
