"""Transactions up to the protocol's limit of 2 GiB go through a pump's port and come out as they
went in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.pumps import PumpReader
from sluice.tidb.rpc import CHANNEL_OPTIONS
from tests.pump_service.pumpkit import CLUSTER, PumpProcess, Site
from tests.pump_service.storekit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
GIB = 1 << 30
TAKING, HANDING_OUT, PULLING = 2.2, 3.2, 3.2
"""Peaks of the pump's memory, as shares of the transaction's size:
docs/how-to/size-a-deployment.md.
"""
BESIDE = 400 << 20
"""Bytes that the pump takes in any case."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("large"))
    yield found
    found.close()


def peak(pump: PumpProcess) -> int:
    """The most memory (bytes) that the process has held since it was asked before."""
    folder = Path(f"/proc/{pump.process.pid}")
    found = re.search(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
    assert found is not None
    (folder / "clear_refs").write_text("5")
    return int(found[1]) << 10


def a_prewrite(start_ts: int, size: int) -> bytes:
    """A request with a Prewrite of `size` bytes, without the copies that protobuf would make."""
    head = (
        b"\x08\x00\x10"
        + encode_uvarint(start_ts)
        + b"\x18\x00\x22\x03key\x2a"
        + encode_uvarint(size)
    )
    end = b"\x38\x00\x40\x00"
    length = len(head) + size + len(end)
    request = b"\x08" + encode_uvarint(CLUSTER) + b"\x12" + encode_uvarint(length)
    block = np.random.default_rng(size).bytes(1 << 20)
    whole, rest = divmod(size, len(block))
    return b"".join([request, head, *([block] * whole), block[:rest], end])


def a_commit(start_ts: int, commit_ts: int) -> bytes:
    binlog = pb.binlog.Binlog(tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"key")
    return pb.pump.WriteBinlogReq(
        clusterID=CLUSTER, payload=binlog.SerializeToString()
    ).SerializeToString()


@pytest.mark.ci_cases("[1 GiB]")
@pytest.mark.parametrize("size", [GIB, int(1.9 * GIB)], ids=["1 GiB", "1.9 GiB"])
def test_a_transaction_of_this_size_is_taken_and_handed_out_within_the_documented_memory(
    site: Site, size: int
) -> None:
    pump = site.pump(f"large-{size}")
    start = site.pd.ts()
    with grpc.insecure_channel(pump.address, options=CHANNEL_OPTIONS) as channel:
        write = channel.unary_unary(
            "/binlog.Pump/WriteBinlog",
            None,
            response_deserializer=pb.pump.WriteBinlogResp.FromString,
        )
        peak(pump)
        assert not write(a_prewrite(start, size), timeout=300).errmsg
        taking = peak(pump)
        commit_ts = site.pd.ts()
        assert not write(a_commit(start, commit_ts), timeout=60).errmsg
    reader = PumpReader(pump.address, CLUSTER, timeout_s=120)
    try:
        eventually(lambda: reader.bounds(start, site.pd.ts(), 1000).hi >= commit_ts)
        peak(pump)
        [found] = [
            (each["commit_ts"][0].as_py(), each["payload"].nbytes)
            for each in reader.read(start, commit_ts)
        ]
        handing_out = peak(pump)
    finally:
        reader.close()
    assert found[0] == commit_ts and found[1] >= size
    pump.kill()
    assert taking <= TAKING * size + BESIDE
    assert handing_out <= HANDING_OUT * size + BESIDE


@pytest.mark.beyond_ci
def test_a_drainer_pulls_a_transaction_of_a_gibibyte(site: Site) -> None:
    pump = site.pump("pulled")
    start = site.pd.ts()
    with grpc.insecure_channel(pump.address, options=CHANNEL_OPTIONS) as channel:
        write = channel.unary_unary("/binlog.Pump/WriteBinlog")
        write(a_prewrite(start, GIB), timeout=300)
        write(a_commit(start, site.pd.ts()), timeout=60)
    reader = PumpReader(pump.address, CLUSTER, timeout_s=120)
    try:
        peak(pump)
        entity = next(entity for entity in reader.pull(start) if entity.start_ts == start)
        pulling = peak(pump)
    finally:
        reader.close()
    assert len(entity.payload) > GIB
    pump.kill()
    assert pulling <= PULLING * GIB + BESIDE
