"""`sluice pumps` and `sluice drainers` against real pumps and a real etcd: who leaves, who is
asked, who is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice import cli
from sluice.etl.landing.planner import UnreadPumpError
from sluice.etl.operate import nodes
from sluice.relay import RelayLog
from sluice.relay.audit import AuditLog
from sluice.relay.known_pumps import KnownPump
from sluice.tidb import NodeStatus
from sluice.tidb.etcd import CAPTURED_LABEL
from tests.pump_service.pumpkit import Site
from tests.pump_service.storekit import eventually

Type = Callable[..., Result]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("site"))
    yield found
    found.close()


@pytest.fixture
def sluice(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    """The commands, for a pipeline of this cluster."""
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "{site.pd.url}"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    monkeypatch.setattr(nodes, "_HEARTBEAT_TIMEOUT_S", 1.5)

    def run(*words: str, says: str = "", fails: bool = False) -> Result:
        done = CliRunner().invoke(cli.group, list(words))
        told = f"{done.output}{done.exception or ''}"
        assert (done.exit_code != 0) == fails, told
        assert says in told
        return done

    return run


@pytest.fixture
def relay(tmp_path: Path) -> RelayLog:
    return RelayLog.open(f"file://{tmp_path}/relay")


@pytest.mark.slow
def test_a_pump_that_runs_is_asked_and_one_that_is_gone_is_written_for(
    site: Site, sluice: Type, relay: RelayLog
) -> None:
    pump = site.pump("asked", "-heartbeat-interval", "1")
    name = pump.node_id
    assert [node["nodeId"] for node in json.loads(sluice("pumps", "list", "--json").stdout)] == [
        name
    ]
    sluice("pumps", "list", says=f"{pump.address}")
    sluice("pumps", "offline", "nobody", says=f"no pump 'nobody'; there are: '{name}'", fails=True)
    sluice("pumps", "offline", name, "--gone", says="leave out --gone", fails=True)
    sluice(
        "pumps",
        "forget",
        name,
        says=f"is online; first take it offline: `sluice pumps offline {name}`",
        fails=True,
    )
    sluice("pumps", "pause", name, says="was asked to pause")
    pump.process.wait(60)
    eventually(lambda: site.entry(pump).state == "paused")
    sluice("pumps", "offline", name, says=f"doesn't answer at {pump.address}", fails=True)
    sluice(
        "pumps", "offline", name, "--gone", says=f"`sluice pumps forget {name}` accepts their loss"
    )
    assert site.entry(pump).state == "offline"
    sluice("pumps", "offline", name, says="is offline already")
    relay.known_pumps.change(
        lambda seen: replace(seen, pumps={name: KnownPump(pump.address, "paused")})
    )
    sluice("pumps", "forget", name, says="is given up")
    assert site.registry.get_pump(name) is None
    assert not relay.known_pumps.load().pumps
    [deed] = AuditLog(relay.place).newest(9)
    assert (deed.what, deed.about) == ("forget-pump", name) and "given up" in deed.outcome
    sluice("pumps", "forget", name, says=f"no pump '{name}'", fails=True)


@pytest.mark.slow
def test_a_pump_that_is_taken_offline_leaves_the_proof_that_all_of_it_was_read(
    site: Site, sluice: Type
) -> None:
    pump = site.pump("drained")
    sluice(
        "pumps",
        "offline",
        pump.node_id,
        says="it goes offline once every drainer has read what it holds",
    )
    pump.process.wait(60)
    eventually(lambda: site.entry(pump).state == "offline")
    entry = site.entry(pump)
    assert entry.drained_ts and entry.drained_ts <= entry.max_commit_ts
    pump.start()
    eventually(lambda: site.entry(pump).state == "online")
    assert site.entry(pump).drained_ts is None
    pump.kill()
    site.registry.remove_pump(pump.node_id)


@pytest.mark.slow
def test_of_pumps_that_capture_one_leaves_without_a_loss_while_another_is_there(
    site: Site, sluice: Type
) -> None:
    for name in ("capture-1", "capture-2"):
        site.registry.register_pump(
            NodeStatus(name, "127.0.0.1:1", label={CAPTURED_LABEL: "7"}, max_commit_ts=5)
        )
    sluice("pumps", "list", says="captures cluster 7")
    for name, said in (("capture-1", "landing reads another one"), ("capture-2", "is given up")):
        sluice("pumps", "offline", name, "--gone", says="landing reads another pump that captures")
        sluice("pumps", "forget", name, says=said)
        assert site.registry.get_pump(name) is None


def test_a_pump_that_is_missing_in_the_registry_is_forgotten_too(
    sluice: Type, relay: RelayLog
) -> None:
    relay.known_pumps.change(
        lambda seen: replace(seen, pumps={"lost": KnownPump("10.0.0.1:8250", "online")})
    )
    sluice("pumps", "forget", "lost", says="is given up")
    assert not relay.known_pumps.load().pumps


@pytest.mark.slow
def test_drainers_leave_as_pumps_do_and_a_pipeline_only_when_its_tasks_have_ended(
    site: Site, sluice: Type
) -> None:
    registry = site.registry
    registry.update_drainer(NodeStatus("old:8249", "127.0.0.1:1", "online", max_commit_ts=7))
    registry.update_drainer(
        NodeStatus("sluice-1", "127.0.0.1:1", "online", label={"sluice": "file:///relay"})
    )
    sluice("drainers", "list", says="old:8249")
    sluice(
        "drainers",
        "offline",
        "old:8249",
        says="`sluice drainers offline old:8249 --gone`",
        fails=True,
    )
    sluice("drainers", "pause", "old:8249", "--gone", says="is paused in the registry")
    sluice("drainers", "offline", "old:8249", "--gone", says="is offline in the registry")
    sluice("drainers", "forget", "old:8249", says="is removed")
    sluice("drainers", "pause", "sluice-1", says="`sluice pause`", fails=True)
    sluice("drainers", "forget", "sluice-1", says="first take it offline", fails=True)
    sluice("drainers", "offline", "sluice-1", says="is offline in the registry")
    sluice("drainers", "forget", "sluice-1")
    assert registry.drainers() == []
    sluice("drainers", "list", says="no drainers in the registry")


def test_an_entry_that_moves_is_not_written_over(
    site: Site, sluice: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeStatus("sluice-2", "127.0.0.1:1", "online", label={"sluice": "file:///relay"})
    site.registry.update_drainer(node)
    monkeypatch.setattr(
        nodes.time, "sleep", lambda _: site.registry.update_drainer(replace(node, update_ts=9))
    )
    sluice(
        "drainers",
        "offline",
        "sluice-2",
        says="is running: its registry entry has just changed",
        fails=True,
    )
    site.registry.remove_drainer("sluice-2")


def test_every_hint_names_commands_that_there_are() -> None:
    for words in ("pumps forget a", "pumps offline a --gone", "drainers offline a"):
        *command, _ = words.replace(" --gone", "").split()
        assert CliRunner().invoke(cli.group, [*command, "--help"]).exit_code == 0
    assert "sluice pumps forget" in UnreadPumpError.hint
