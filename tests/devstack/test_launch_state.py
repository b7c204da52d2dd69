"""state.json and ports."""

import socket

import pytest

from sluice.devstack.processes import ProcessId
from sluice.devstack.state import (
    StackError,
    StackState,
    StartedService,
    choose_ports,
    load_state,
    locked,
    port_is_free,
    save_state,
)


def test_state_comes_back_as_it_was_saved(tmp_path):
    part = StartedService(
        ProcessId(17, 4711),
        "127.0.0.1",
        {"client": 21017},
        ["etcd", "--x=ü"],
        {"A": "b"},
        "/log",
        1_700_000_000_000,
    )
    state = StackState({"etcd-client": 21017}, "/some/recording", ProcessId(5, 6), {"etcd": part})
    save_state(tmp_path, state)
    assert load_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_no_state_file_is_an_empty_state(tmp_path):
    assert load_state(tmp_path) == StackState()


@pytest.mark.parametrize("text", ["{", '{"format": 99}'])
def test_a_state_file_that_cannot_be_used_is_named_with_the_hint(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(StackError, match=r"state\.json.*make clean"):
        load_state(tmp_path)


def test_only_one_command_changes_a_stack_at_a_time(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(StackError, match="another sluice command"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_ports_are_free_distinct_and_kept():
    names = [f"port-{n}" for n in range(50)]
    ports = choose_ports(names, {"port-3": 21003})
    assert ports["port-3"] == 21003
    assert len(set(ports.values())) == 50
    assert choose_ports(names, ports) == ports


def test_a_port_that_somebody_listens_on_is_not_free():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not port_is_free(port)
    assert port_is_free(port)
