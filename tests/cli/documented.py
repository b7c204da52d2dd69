"""The commands that the documents give, and where each of them is run: on one running stack, by a
test of its own, or, with the reason, in no test.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
_PROGRAMS = re.compile(
    "sluice|make|python3?|pip|git|docker|kubectl|helm|curl|mariadb|apt-get|airflow|systemctl|useradd|install|cp|runuser|tiup"
    "|dumpling|kill|make-secrets|export|openssl|uv|venv-pack"
)


def typed() -> dict[str, set[str]]:
    """Every command in the documents' blocks of code, without folder and comment.

    The pages that give it.
    """
    found: dict[str, set[str]] = {}
    for page in _DOCUMENTS:
        text = re.sub(r" *\\\n +", " ", page.read_text(encoding="utf-8"))
        for line in re.findall(r"^ {4,}(?:\$ )?(\S.*)$", text, re.MULTILINE):
            words = re.sub(r" +# .*", "", line).split()
            name = words[0].rsplit("/", 1)[-1]
            if words[1:2] == ["="]:
                continue  # a setting
            if _PROGRAMS.fullmatch(name) and (len(words) > 1 or "/" in words[0]):
                found.setdefault(" ".join([name, *words[1:]]), set()).add(page.name)
    return found


def in_sentences(program: str) -> set[str]:
    """The commands of a program that stand in the documents' sentences, between backticks."""
    texts = [page.read_text(encoding="utf-8") for page in _DOCUMENTS]
    return {
        " ".join(found.split())
        for text in texts
        for found in re.findall(rf"(?<!`)`({program} [^`]+)`", text)
    }


ON_THE_STACK = (
    "sluice --version",
    "sluice status",
    "sluice status --json",
    "sluice top --once",
    "sluice snapshot list",
    "sluice snapshot check",
    "sluice snapshot make --from downstream --plan",
    "sluice backfill --table shop.orders --plan",
    "sluice backfill --table 'shop.*' --table crm.customer --mode compare --plan",
    "sluice backfill --table shop.orders --from-key 1000000 --to-key 2000000 --plan",
    "sluice backfill --table shop.orders --where \"created_at >= '2026-11-16'\" --plan",
    "sluice verify shop.orders 'bank.*'",
    "sluice verify shop.orders --repair --apply",
)
"""Typed one behind the other in `test_tried_documents`, in this order, with names, keys, moments
and folders that are there in place of the documents'.
"""

BY_A_TEST = {
    r"sluice (up etcd .*|replay .* --send-only|init .*|grants > .*)|mariadb --no-defaults .*"
    r"|sluice undo \d+ --apply|kill %1": ("tests/cli/test_tried_documents.py"),
    r"make (run|up|down)|sluice run": "tests/cli/test_run.py",
    r"sluice (programs|down|run --rec.*)": "tests/test_wheel.py",
    r"sluice (up|replay .*--paused|bootstrap --from tidb.*|snapshot make)|sluice (restore|backfill)"
    r" --table bank.child.*"
    r"|sluice backfill --table shop.orders|mariadb --defaults-file=.*": (
        "tests/cli/test_tried_documents.py"
    ),
    r"sluice bootstrap --from /mnt/.*": "tests/etl/copy/test_bootstrap_command.py",
    r"sluice (snapshot (make|forget).*|bootstrap --from snapshot://)": (
        "tests/etl/history/snapshots/test_snapshots_running.py"
    ),
    r"sluice archive export .*": "tests/etl/history/lake/test_lake_commands.py",
    r"sluice as-of .*": "tests/etl/history/as_of/test_asof_by_spark.py",
    r"sluice find .*": "tests/etl/history/find/test_find.py",
    r"sluice undo --since .*": "tests/etl/history/undo/test_undo_range.py",
    r"sluice undo .*": "tests/etl/history/undo/test_undo.py",
    r"sluice verify( --json)?": "tests/etl/verify/test_verify_running.py",
    r"sluice reapply .*": "tests/etl/verify/reapply/test_reapply_command.py",
    r"sluice (relay show .*|pause( apply)?|resume)": "tests/cli/test_operate.py",
    r"sluice doctor": "tests/cli/test_doctor.py",
    r"sluice grants .*": "tests/cli/test_takeover_check.py",
    r"sluice takeover": "tests/cli/test_changing_hands.py",
    r"sluice pipelines": "tests/cli/test_pipelines_command.py",
    r"sluice top( --pipeline shop)?": "tests/cli/test_top.py",
    r"curl .*dagRuns.*|curl .*auth/token": "tests/devstack/test_stack_airflow.py",
    r"curl -X PUT .*/verdict/.*": "tests/pump_service/http/test_http_api.py",
    r"sluice upgrade --check.*": "tests/upgrade/test_upgrade_check.py",
    r"sluice capture --check": "tests/cli/test_capture_operations.py",
    r"make-secrets": "tests/deploy/test_start.py",
    r"export .*": "tests/test_wheel.py",
    r"pip install .*sluice-\*\.whl|python3 -m venv .*": "tests/test_wheel.py",
    r"systemctl .*|cp deploy/systemd.*|install .*|runuser .*|useradd .*": (
        "tests/deploy/test_systemd.py"
    ),
    r"sluice (pumps|drainers) .*": "tests/cli/test_nodes.py",
    r"tiup .*": "tests/deploy/test_tiup.py",
}
"""What a command matches as a whole (the first counts): the module that runs it, or what it starts.
"""

BY_ITS_FUNCTION = {
    r"sluice backfill --table '`my\.db`\.orders' --plan": "tests/tidb/test_table_name.py",
    r"sluice restore --until .*--files .*": "tests/etl/restore/test_restore_files.py",
    r"sluice restore --until .*": "tests/etl/restore/test_restore.py",
    r"sluice verify .*--repair > .*": "tests/etl/verify/test_continuous_running.py",
    r"sluice verify --continuous.*": "tests/etl/verify/test_continuous_running.py",
    r"sluice quality .*": "tests/expectations/test_quality_run.py",
    r"airflow .*": "tests/dags/test_dags.py",
    r"sluice metrics --listen .*": "tests/devstack/test_stack.py",
    r"sluice replicate .*": "tests/etl/tasks/test_service.py",
    r"sluice config --check .*": "tests/etl/operate/test_rule_check.py",
    r"sluice config --partial": "tests/etl/operate/test_partial_tables.py",
    r"sluice resume apply": "tests/cli/test_operate.py",
    r"sluice spark .*": "tests/etl/spark/test_standalone_cluster.py",
}
"""The module runs what the command calls, with such wishes; its options are parsed in
tests/test_docs.py, Airflow's in tests/dags/test_dags.py.
"""

IN_NO_TEST = {
    r"apt-get install .*": "it changes the machine; the names are what bin/setup installs",
    r"docker .*": (
        "no Docker engine; what containers start is run as processes,"
        " tests/deploy/test_compose_runs.py"
    ),
    r"kubectl .*": "no cluster; the manifests are checked in tests/deploy/test_kubernetes.py",
    r"dumpling .*": (
        "TiDB's own program, against a TiDB; dumps that it wrote are in tests/recordings/bootstrap"
    ),
    r"git (clone|pull).*": "a network",
    r"sluice bench .*|python -m sluice.bench.compare .*": (
        "minutes on quiet cores; tests/cli/test_bench_results.py"
    ),
    r"python -m sluice.bench.endurance .*": "minutes to hours",
    r"python -m sluice\.bench\.limits.*": (
        "a minute on quiet cores; its parts are in tests/cli/test_bench_limits.py"
    ),
    r"python -m tests\.judge .*": "minutes; one history of it is in tests/judge",
    r"pip install -r dist/.*|venv-pack .*": "1.5 GB from the network",
    r"make (test|test-all|setup|help|test-downstream.*)|python -m pytest .*": (
        "it is what runs the tests"
    ),
}
