"""What the pump does while something it needs is away: real processes, stopped or killed.

docs/reference/pump.md, "What the pump does when …", says the same in words.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from sluice.tidb.codec.varint import encode_uvarint
from tests.pump_service.pumpkit import CLUSTER, ROOT, Client, PumpProcess, Site, binlog
from tests.pump_service.storekit import eventually

_FAST = ("-heartbeat-interval", "0.3", "-fake-binlog-interval", "0.3")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def metrics(pump: PumpProcess) -> dict[str, float]:
    """The numbers of /metrics by name and labels, without `binlog_pump_`."""
    text = httpx.get(f"http://{pump.address}/metrics", timeout=60).text
    return {
        name.removeprefix("binlog_pump_"): float(value)
        for name, value in re.findall(r"^(\S+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    }


def refusal(client: Client, payload: bytes) -> str:
    """Why a write is refused; gRPC's status is what TiDB sees of an error (UNKNOWN)."""
    with pytest.raises(grpc.RpcError) as refused:
        client.write(payload)
    assert refused.value.code() == grpc.StatusCode.UNKNOWN
    return str(refused.value.details())


def configured(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "pump.toml"
    path.write_text(text)
    return "-config", str(path)


def _process_of(site: Site) -> subprocess.Popen[bytes]:
    process = site.etcd._process
    assert process is not None
    return process


# -- etcd and PD


@pytest.mark.slow
def test_while_etcd_hangs_the_pump_serves_and_then_its_entry_is_fresh_again(site: Site) -> None:
    pump = site.pump("one", *_FAST)
    client = Client(pump.address)
    etcd = _process_of(site)
    etcd.send_signal(signal.SIGSTOP)
    try:
        for number in range(3):
            start, commit = client.transaction(site.pd, b"etcd hangs %d" % number)
            assert client.pull_commits(commit - 1, 1)[0].start_ts == start
        eventually(lambda: "heartbeat failed" in pump.text())
        status = httpx.get(f"http://{pump.address}/status", timeout=60).json()
        assert status["ErrMsg"]
    finally:
        etcd.send_signal(signal.SIGCONT)
    eventually(lambda: site.entry(pump).max_commit_ts >= commit)
    assert site.entry(pump).state == "online"
    eventually(lambda: "heartbeat is back" in pump.text())
    client.close()


@pytest.mark.slow
def test_a_pump_does_not_start_while_etcd_is_away_and_says_so(site: Site) -> None:
    site.etcd.stop()
    pump = site.pump("one", start=False)
    pump.launch()
    assert pump.process.wait(60) == 2
    assert re.search(r"^pump: can't read the registry \(etcd of PD\): ", pump.text(), re.MULTILINE)


class _Frozen:
    """The stand-in cluster (PD, etcd's door and TiKV behind one port) as a process that can be
    stopped.
    """

    def __init__(self, etcd_port: int) -> None:
        command = [
            sys.executable,
            "-m",
            "sluice.devstack.tidb",
            "--etcd",
            f"http://127.0.0.1:{etcd_port}",
        ]
        command += [
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
            "--cluster-id",
            str(CLUSTER),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        *_, port, _sql, _control = re.findall(r"\d+", self.process.stdout.readline())
        self.port = int(port)
        self.url = f"http://127.0.0.1:{port}"
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def cluster(site: Site) -> Iterator[_Frozen]:
    frozen = _Frozen(site.etcd.port)
    yield frozen
    frozen.close()


@pytest.mark.slow
def test_while_pd_hangs_writes_and_readers_go_on_without_fakes(
    site: Site, cluster: _Frozen
) -> None:
    pump = PumpProcess(cluster, site.folder / "one", *_FAST)  # type: ignore[arg-type]
    site.pumps.append(pump)
    pump.start()
    client = Client(pump.address)
    eventually(lambda: metrics(pump)["storage_max_commit_ts"] > 0)  # a fake binlog: PD answers
    cluster.stop()
    _, commit = client.transaction(site.pd, b"pd hangs")
    assert client.pull_commits(commit - 1, 1)[0].prewrite_value == b"pd hangs"
    before = commit >> 18
    time.sleep(1)
    assert metrics(pump)["storage_max_commit_ts"] == before
    cluster.go_on()
    eventually(lambda: metrics(pump)["storage_max_commit_ts"] > before)
    cluster.stop()
    assert pump.terminate(30) == 0  # Kubernetes kills what takes longer
    client.close()


# -- TiKV


@pytest.fixture
def tikv(site: Site, cluster: _Frozen) -> _Frozen:
    """TiKV as a process of its own: PD stays in this one, and remembers where the regions are."""
    known: dict[tuple[str, bytes], bytes] = {}

    def forward(name: str) -> grpc.RpcMethodHandler:
        def answer(request: bytes, _context: object) -> bytes:
            if (name, request) not in known:
                known[name, request] = cluster.channel.unary_unary(f"/pdpb.PD/{name}")(
                    request, timeout=60
                )
            return known[name, request]

        return grpc.unary_unary_rpc_method_handler(answer)

    site.pd.stop()
    site.pd.more = {name: forward(name) for name in ("GetRegion", "GetStore")}
    site.pd.start()
    return cluster


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hangs", "is killed"])
def test_while_tikv_is_away_an_open_prewrite_waits_and_is_never_guessed(
    site: Site, tikv: _Frozen, way: str
) -> None:
    pump = site.pump("one", *_FAST)
    client = Client(pump.address)
    lo = site.pd.ts() - (3_600_000 << 18)
    first = client.transaction(site.pd, b"before")[1]
    tikv.stop()
    # TiDB died 11 minutes ago between its Prewrite and its Commit, and TiKV was never reached: it
    # will say "rolled back".
    orphan = site.pd.ts() - (660_000 << 18)
    client.write(binlog(0, orphan, value=b"orphan", key=b"t-primary"))
    later = [client.transaction(site.pd, b"behind %d" % number)[1] for number in range(5)]
    if way == "is killed":
        tikv.process.kill()
    eventually(lambda: metrics(pump)["storage_query_tikv_count"] >= 1)
    time.sleep(1.5)
    waiting = metrics(pump)
    assert waiting["storage_pending_prewrites"] == 1
    assert (
        waiting["storage_max_commit_ts"] < later[0] >> 18
        or waiting["storage_max_commit_ts"] == first >> 18
    )
    got = [b.commit_ts for b in client.pull_commits(lo, 1)]
    assert got == [first]  # what lies before the open one is read
    stream = client.pull(first, timeout=1)
    with pytest.raises(grpc.RpcError) as nothing:
        while next(stream).entity.meta.commitTs < later[0]:
            pass
    assert nothing.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    if way == "is killed":
        # Nobody will answer any more: the verdict can come from TiDB alone.
        client.write(binlog(2, orphan))
    else:
        tikv.go_on()
    assert [b.commit_ts for b in client.pull_commits(first, 5, timeout=60)] == later
    assert metrics(pump)["storage_pending_prewrites"] == 0
    client.close()
    pump.kill()
    verdicts = re.findall(
        re.escape(b"\x08\x02\x10" + encode_uvarint(orphan) + b"\x18\x00"),
        b"".join(path.read_bytes() for path in sorted((pump.data_dir / "value").iterdir())),
        re.DOTALL,
    )
    assert len(verdicts) == 1  # it was written as a record


# -- the disk


def test_after_a_failed_fsync_the_pump_takes_nothing_more_and_readers_go_on(site: Site) -> None:
    pump = site.pump("one", "-fake-binlog-interval", "3600", start=False)
    pump.env["SLUICE_FAILPOINTS"] = "vlog.fsync=error@6"
    pump.start()
    client = Client(pump.address)
    lo = site.pd.ts()
    done = [client.transaction(site.pd, b"kept %d" % number)[1] for number in range(2)]
    for tp in (0, 1):
        text = refusal(client, binlog(tp, site.pd.ts(), tp * site.pd.ts()))
        assert "the store accepts nothing until the pump is started again" in text
    # not even a Rollback
    assert "the store accepts nothing" in refusal(client, binlog(2, site.pd.ts()))
    found = metrics(pump)
    assert (found["storage_failed"], found["storage_writable"]) == (1, 0)
    assert (
        sum(value for name, value in found.items() if name.startswith("storage_error_count")) >= 3
    )
    assert pump.text().count("writing the value log failed") == 1
    assert [b.commit_ts for b in client.pull_commits(lo, 2)] == done
    client.close()
    assert pump.terminate(60) == 0
    pump.env.clear()
    pump.start()
    again = Client(pump.address)
    done.append(again.transaction(site.pd, b"after")[1])
    again.write(binlog(2, _unfinished(pump)))
    assert [b.commit_ts for b in again.pull_commits(lo, 3)] == done
    assert metrics(pump)["storage_failed"] == 0
    again.close()


def _unfinished(pump: PumpProcess) -> int:
    """start_ts of the Prewrite whose fsync failed: it may be on the disk, and TiDB would have
    rolled it back.
    """
    data = (pump.data_dir / "value" / "000000.vlog").read_bytes()
    begins = [m.end() for m in re.finditer(rb"\x08\x00\x10", data)]
    starts = []
    for at in begins:
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        starts.append(value)
    return starts[2]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A file system of its own, of so many MiB, in memory."""
    path = tmp_path / "disk"

    def mount(mib: int) -> Path:
        path.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("file systems can't be mounted here")
        return path

    yield mount
    with contextlib.suppress(subprocess.CalledProcessError):
        subprocess.run(["umount", "-l", str(path)], check=path.is_mount(), capture_output=True)


@pytest.mark.slow
def test_on_a_full_disk_writes_are_refused_until_there_is_room(
    site: Site, disk: Callable[[int], Path]
) -> None:
    path = disk(12)
    (path / "ballast").write_bytes(bytes(6 << 20))
    settings = configured(
        site.folder,
        '[storage]\nstop-write-at-available-space = "1 b"\n[storage.kv]\nwrite-buffer = 262144',
    )
    pump = PumpProcess(site.pd, path / "pump", *settings)
    pump.log = site.folder / "full.log"
    site.pumps.append(pump)
    pump.start()
    client = Client(pump.address)
    lo = site.pd.ts()
    done = []
    text = ""
    for number in range(100):
        start = site.pd.ts()
        try:
            client.write(binlog(0, start, value=bytes(200_000)))
            done.append(site.pd.ts())
            client.write(binlog(1, start, done[-1]))
        except grpc.RpcError as error:
            text = str(error.details())  # type: ignore[attr-defined]
            break
    assert re.fullmatch(
        r"no available space, available: \d+, StopWriteAtAvailableSpace: 1", text
    ), text
    assert number >= 10
    assert metrics(pump)["storage_failed"] == 0
    (path / "ballast").unlink()
    eventually(lambda: metrics(pump)["storage_writable"] == 1)
    deadline = time.monotonic() + 60
    while True:
        try:
            client.write(binlog(2, start))  # the transaction that was refused is rolled back
            done.append(client.transaction(site.pd, b"after")[1])
            break
        except grpc.RpcError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    got = [b.commit_ts for b in client.pull_commits(lo, number + 1, timeout=60)]
    assert got == [*done[:number], done[-1]]
    client.close()
    pump.kill()


@pytest.mark.slow
def test_below_the_limit_of_free_space_only_what_moves_readers_is_taken(
    site: Site, disk: Callable[[int], Path]
) -> None:
    path = disk(24)
    settings = configured(site.folder, '[storage]\nstop-write-at-available-space = "15 mib"')
    pump = PumpProcess(site.pd, path / "pump", *settings, "-fake-binlog-interval", "0.3")
    pump.log = site.folder / "limit.log"
    site.pumps.append(pump)
    pump.start()
    client = Client(pump.address)
    client.transaction(site.pd, b"room")
    (path / "ballast").write_bytes(bytes(12 << 20))
    eventually(lambda: metrics(pump)["storage_writable"] == 0)
    text = refusal(client, binlog(0, site.pd.ts(), value=b"x"))
    assert re.fullmatch(
        r"no available space, available: \d+, StopWriteAtAvailableSpace: 15728640", text
    )
    # a probe fails too
    assert refusal(client, b"") == text or "no available space" in refusal(client, b"")
    found = metrics(pump)
    assert found['storage_storage_size_bytes{type="available"}'] <= 15 << 20
    # fakes go on
    eventually(lambda: metrics(pump)["storage_max_commit_ts"] > found["storage_max_commit_ts"])
    (path / "ballast").unlink()
    eventually(lambda: metrics(pump)["storage_writable"] == 1)
    client.transaction(site.pd, b"room again")
    client.close()
    pump.kill()


@pytest.mark.slow
def test_a_read_only_data_directory_is_refused_with_one_line(
    site: Site, disk: Callable[[int], Path]
) -> None:
    path = disk(2)
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
    pump = PumpProcess(site.pd, path / "pump")
    pump.log = site.folder / "ro.log"
    pump.launch()
    assert pump.process.wait(60) == 2
    lines = [line for line in pump.text().splitlines() if line.startswith("pump: ")]
    assert len(lines) == 1
    assert "Read-only file system" in lines[0]
    assert str(path / "pump") in lines[0]
