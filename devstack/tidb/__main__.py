"""Run the stand-in cluster as a process.

python -m sluice.devstack.tidb --recording DIR --etcd URL --listen HOST:PORT
    --control HOST:PORT --sql HOST:PORT
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from pathlib import Path

from sluice.devstack.recording import RecordingError
from sluice.devstack.tidb.server import Cluster, ClusterOptions


def main() -> int:
    """Run until SIGTERM or SIGINT; 2 if the recording or an address can't be used."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.devstack.tidb",
        description="A stand-in TiDB cluster that replays recordings",
    )
    parser.add_argument(
        "--recording", type=Path, help="the recording to replay; without it only workloads can run"
    )
    parser.add_argument("--etcd", required=True, help="URL of the etcd behind PD's port")
    parser.add_argument(
        "--listen", default="127.0.0.1:2379", help="where PD, TiKV and etcd are served (gRPC)"
    )
    parser.add_argument(
        "--control", default="127.0.0.1:2380", help="where the control port is served (HTTP)"
    )
    parser.add_argument(
        "--sql", default="127.0.0.1:0", help="where TiDB's SQL port is served (MySQL)"
    )
    parser.add_argument("--cluster-id", type=int, help="default: the recording's, or random")
    parser.add_argument("--stores", type=int, default=1, help="how many TiKV stores there are [1]")
    parser.add_argument(
        "--min-ts-interval",
        type=float,
        default=1.0,
        help="seconds between change data's resolved timestamps [1]",
    )
    parser.add_argument(
        "--capture",
        action="store_true",
        help="write rows to TiKV for change data capture, no binlogs to pumps",
    )
    given = parser.parse_args()
    # Millions of rows that no cycle holds: to look through all of them would stop all of TiDB for
    # seconds.
    gc.set_threshold(10_000, 20, 1_000_000)
    try:
        options = ClusterOptions(
            given.etcd, given.listen, given.control, given.sql, given.recording, given.cluster_id,
            given.stores, given.min_ts_interval, given.capture,
        )  # fmt: skip
        asyncio.run(_serve(options))
    except (RecordingError, OSError) as error:
        print(f"stand-in cluster: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(options: ClusterOptions) -> None:
    cluster = Cluster(options)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await cluster.start()
    print(
        f"stand-in cluster {cluster.cluster_id}: PD, TiKV and etcd on port {cluster.port},"
        f" SQL on port {cluster.sql_port}, control on port {cluster.control_port}",
        flush=True,
    )
    try:
        await ended.wait()
    finally:
        await cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
