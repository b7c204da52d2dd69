"""The registry in a real etcd."""

import json

import pytest

from sluice.tidb.etcd import EtcdClient, NodeStatus, Registry, RegistryError

PUMP = NodeStatus(
    "db1:8250", "10.0.0.1:8250", max_commit_ts=407306588892692486, update_ts=407306588892692490
)


@pytest.fixture
def etcd(etcd_url):
    with EtcdClient(etcd_url, timeout_s=60) as client:
        yield client


def test_an_entry_is_the_original_json(etcd):
    assert Registry(etcd).register_pump(PUMP)
    value = etcd.get("/tidb-binlog/v1/pumps/db1:8250").value
    assert value == (
        b'{"nodeId":"db1:8250","host":"10.0.0.1:8250","state":"online","isAlive":false,"score":0,"label":null,'
        b'"maxCommitTS":407306588892692486,"updateTS":407306588892692490}'
    )


def test_entries_that_others_wrote_are_read_whatever_the_order_of_their_keys(etcd):
    etcd.put(
        "/tidb-binlog/v1/drainers/d1",
        json.dumps(
            {
                "updateTS": 2,
                "maxCommitTS": 1,
                "label": {"labels": {"zone": "a"}},
                "score": 3,
                "isAlive": True,
                "state": "paused",
                "host": "h:1",
                "nodeId": "d1",
                "new": [],
            }
        ).encode(),
    )
    assert Registry(etcd).drainers() == [
        NodeStatus("d1", "h:1", "paused", True, 3, {"zone": "a"}, 1, 2)
    ]
    assert Registry(etcd).pumps() == []


def test_a_pump_is_created_then_updated(etcd):
    registry = Registry(etcd)
    assert registry.get_pump("db1:8250") is None
    assert registry.update_pump(PUMP)
    later = NodeStatus("db1:8250", "10.0.0.2:8250", state="paused", label={"a": "b"})
    assert not registry.update_pump(later)
    assert registry.get_pump("db1:8250") == later
    assert registry.pumps() == [later]
    assert etcd.delete("/tidb-binlog/v1/pumps/db1:8250")
    assert registry.pumps() == []


def test_a_drainer_is_kept_apart_from_pumps(etcd):
    registry = Registry(etcd)
    registry.update_drainer(NodeStatus("same", "h:2"))
    registry.register_pump(NodeStatus("same", "h:1"))
    assert [drainer.host for drainer in registry.drainers()] == ["h:2"]
    assert registry.get_pump("same").host == "h:1"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"null",
        b'{"nodeId":"x"}',
        b'{"nodeId":1,"host":"h","state":"online"}',
        b'{"nodeId":"x","host":"h","state":"asleep"}',
    ],
)
def test_an_entry_that_cannot_be_read_is_an_error_that_names_its_key(etcd, value):
    etcd.put("/tidb-binlog/v1/pumps/bad", value)
    with pytest.raises(RegistryError, match="/tidb-binlog/v1/pumps/bad"):
        Registry(etcd).pumps()


def test_a_wrong_status_is_not_written(etcd):
    with pytest.raises(ValueError, match="asleep"):
        Registry(etcd).register_pump(NodeStatus("x", "h:1", state="asleep"))
    for node_id in ["", "a/b"]:
        with pytest.raises(RegistryError, match="node id"):
            Registry(etcd).register_pump(NodeStatus(node_id, "h:1"))
    assert etcd.range_prefix("/").items == ()


def test_a_watch_shows_all_pumps_after_every_change(etcd):
    registry = Registry(etcd)
    registry.register_pump(PUMP)
    watch = registry.watch_pumps()
    states = iter(watch)
    assert next(states) == {"db1:8250": PUMP}
    second = NodeStatus("db2:8250", "10.0.0.2:8250")
    registry.register_pump(second)
    assert next(states) == {"db1:8250": PUMP, "db2:8250": second}
    etcd.put("/tidb-binlog/v1/pumps/db2:8250", b"garbage")
    assert next(states) == {"db1:8250": PUMP, "db2:8250": second}
    etcd.delete("/tidb-binlog/v1/pumps/db1:8250")
    assert next(states) == {"db2:8250": second}
    watch.close()
    assert list(states) == []
