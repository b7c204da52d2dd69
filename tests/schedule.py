"""In which order test files are handed to the workers, and which files share one.

Files that need Spark, or the whole stack with Airflow, go to one worker each: so one Spark server
serves all of them and two of Airflow never start beside each other on two cores. Those, and other
files that take long, begin first: a long one at the end would be waited for by workers with nothing
to do.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
SHARED = {
    "the stack": r"\bmark\.e2e\b",
    "Spark": r"\bspark_(remote|server)\b",
    "the pages": r"def test_\w+\([^)]*\bpages\b",
}
"""What is shared, and how it is known of a file that it needs it."""
LONG = (
    "tests/etl/copy/test_bootstrap_topics.py",
    "tests/etl/downstream/sinks/test_kafka_topics.py",
    "tests/etl/downstream/sinks/test_kafka_flink.py",
    "tests/etl/history/as_of/test_asof_recordings.py",
    "tests/etl/restore/test_restore_recordings.py",
    "tests/etl/spark/test_executors_leave.py",
    "tests/etl/apply/test_frozen_process.py",
    "tests/etl/spark/test_standalone_cluster.py",
    "tests/pump_service/cluster/test_node.py",
    "tests/etl/changes/messages/test_recorded_messages.py",
    "tests/judge/test_judge.py",
    "tests/etl/apply/test_apply_random.py",
    "tests/pump_service/test_large_transactions.py",
    "tests/devstack/tidb/test_player.py",
    "tests/etl/history/archive/test_archiving.py",
    "tests/etl/apply/test_column_rules.py",
    "tests/etl/apply/test_apply_recordings.py",
    "tests/devstack/tidb/sql/test_in_the_cluster.py",
    "tests/etl/verify/reapply/test_reapply_files.py",
    "tests/etl/tasks/test_service.py",
    "tests/test_docs.py",
    "tests/etl/downstream/sinks/test_kafka_spark.py",
    "tests/etl/restore/test_restore.py",
    "tests/etl/downstream/sinks/test_kafka_security.py",
    "tests/etl/verify/test_comparing.py",
    "tests/etl/verify/test_corruptions.py",
    "tests/etl/apply/test_appointments_killed.py",
    "tests/etl/apply/test_row_rules.py",
    "tests/etl/apply/test_flight_replay.py",
    "tests/etl/apply/test_cut_transactions.py",
    "tests/etl/apply/test_tidb_killed.py",
    "tests/etl/downstream/sinks/test_kafka_recordings.py",
    "tests/devstack/tidb/sql/test_statements.py",
    "tests/etl/apply/test_apply_captured.py",
    "tests/etl/history/undo/test_undo_recordings.py",
    "tests/etl/downstream/sinks/test_kafka_jdbc_sink.py",
    "tests/pump_service/test_tidb_dies.py",
    "tests/pump_service/test_outages.py",
    "tests/pump_service/test_hostile_clients.py",
)
"""The longest first, by the seconds of all their tests; with a broker those of Kafka, too."""


@functools.cache
def shared_by(file: str) -> str:
    """What a file, by its path from the root, needs that is shared; "" for nothing."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return next((name for name, sign in SHARED.items() if re.search(sign, text)), "")


def in_order(files: Iterable[str]) -> dict[str, int]:
    """The place of each file, given once for each of its tests.

    Of those that aren't long, many tests come first.
    """
    counts = Counter(files)

    def place(file: str) -> tuple[int, int, str]:
        if shared := shared_by(file):
            return list(SHARED).index(shared), 0, file
        if file in LONG:
            return len(SHARED), LONG.index(file), file
        return len(SHARED) + 1, -counts[file], file

    return {file: number for number, file in enumerate(sorted(counts, key=place))}


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """A worker gets a file at a time, or all that share something."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return shared_by(file) or file
