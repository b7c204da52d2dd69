"""How fast a landed backlog is applied to a server that is far away, against the same server near
by.

    .venv/bin/python -m tests.etl.apply.far_away [DELAY_MS] [MODE] [MAX_ROWS] [WORKERS]

DELAY_MS is what a round trip takes. The recording `sysbench` is landed, and applied in this
process, without Spark and Airflow, through a proxy that holds back every byte
(`sluice.bench.far_proxy`), and without.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

from sluice.bench import backlog
from sluice.bench.far_proxy import FarProxy
from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.tidb import pb
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import committed, land

REPEATED = 20
RECORDING = Path(__file__).parents[3] / "bench/recordings/sysbench"


def payload_of(value: bytes, start_ts: int) -> bytes:
    """A Prewrite binlog with that value."""
    return bytes(
        pb.binlog.Binlog(
            tp=0, start_ts=start_ts, commit_ts=0, prewrite_value=value
        ).SerializeToString()
    )


def apply_through(
    server: MariaDBServer, relay: RelayLog, apply: Apply, delay_s: float
) -> dict[str, object]:
    """Apply all of the relay log into the emptied server, each byte `delay_s` on its way."""
    server.empty()
    for name in ("downstream.json", "consumers", "measures"):
        path = Path(relay.url.removeprefix("file://")) / name
        with contextlib.suppress(FileNotFoundError):
            path.unlink() if path.is_file() else [
                each.unlink() for each in path.rglob("*") if each.is_file()
            ]
    last = relay.last()
    assert last is not None
    seen: list[tuple[float, BatchReport]] = []
    with FarProxy(server.port, delay_s) as proxy:
        settings = Settings(
            Upstream("unused"),
            Relay(relay.url),
            replace(server.downstream, port=proxy.port),
            apply=apply,
        )
        cpu = time.process_time()
        run_apply(
            settings, until_ts=last.hi, run_seconds=900, prepare=local_preparer(settings),
            on_batch=lambda report: seen.append((time.monotonic(), report)),
        )  # fmt: skip
        cpu = time.process_time() - cpu
    big = [each for each in seen if each[1].changes]
    changes = sum(report.changes for _, report in big[1:])
    return {
        "changes": changes, "s": round(big[-1][0] - big[0][0], 2),
        "changes_per_s": round(changes / (big[-1][0] - big[0][0])), "batches": len(big),
        "turns_by_session": proxy.turns, "client_cpu_s": round(cpu, 2),
        "largest": max(report.changes for _, report in big),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }  # fmt: skip


def main(
    delay_ms: float = 50, mode: str = "parallel", max_rows: int = 25_000, workers: int = 4
) -> None:
    """Print a line of JSON for near by and for far away."""
    apply = Apply(mode, workers, max_rows)
    with tempfile.TemporaryDirectory() as folder:
        server = MariaDBServer(Path(folder) / "mariadb")
        server.start()
        try:
            _, values = backlog.load(RECORDING)
            rows = list(committed(RECORDING))
            more = backlog.again(values, REPEATED)
            end = rows[-1][0]
            for n, (value, _) in enumerate(more):
                rows.append((end + 2 * n + 2, end + 2 * n + 1, payload_of(value, end + 2 * n + 1)))
            with mock.patch("tests.etl.relay_from_recording.committed", lambda _: rows):
                relay = land(RECORDING, f"file://{folder}/relay", 1000)
            for delay_s in (0.0, delay_ms / 2000):
                print(
                    json.dumps(
                        {"delay_ms": delay_s * 2000} | apply_through(server, relay, apply, delay_s)
                    ),
                    flush=True,
                )
        finally:
            server.kill()


if __name__ == "__main__":
    os.environ.setdefault("TZ", "UTC")
    given = sys.argv[1:]
    main(
        float(given[0]) if given else 50,
        given[1] if len(given) > 1 else "parallel",
        int(given[2]) if len(given) > 2 else 25_000,
        int(given[3]) if len(given) > 3 else 4,
    )
