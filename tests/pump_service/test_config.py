"""pump.toml, flags and environment: the original's names, defaults, units and precedence."""

import pytest

from pump_service.config import ConfigError, load, parse_gc, parse_size

_FULL = """
addr = "127.0.0.1:9000"
advertise-addr = "10.0.0.1:9000"
pd-urls = "http://a:2379,http://b:2379"
data-dir = "/data/pump"
heartbeat-interval = 3
gc = "8h"
log-level = "warn"
node-id = "n1"
gen-binlog-interval = 5
metrics-addr = "gateway:9091"
[security]
ssl-ca = "ca.pem"
ssl-cert = "cert.pem"
ssl-key = "key.pem"
cert-allowed-cn = ["TiDB", "drainer"]
[storage]
sync-log = false
kv_chan_cap = 1048576
slow_write_threshold = 2.5
stop-write-at-available-space = "42 mib"
[storage.kv]
block-cache-capacity = 16777216
block-size = -1
write-L0-pause-trigger = 24
"""


def _load(tmp_path, text, *flags, **environ):
    path = tmp_path / "pump.toml"
    path.write_text(text)
    return load(["-config", str(path), *flags], environ)


def test_defaults_are_the_originals():
    config = load([], {})
    assert config.addr.endswith(":8250")
    assert config.advertise_addr == config.addr
    assert (config.pd_urls, config.data_dir) == ("http://127.0.0.1:2379", "data.pump")
    assert (config.heartbeat_interval, config.gen_binlog_interval, config.metrics_interval) == (2, 3, 15)
    assert config.gc_s == 7 * 86400
    assert config.storage.sync_log
    assert config.storage.stop_write_at_available_space == 10 << 30
    assert config.storage.kv.write_buffer == 67108864


def test_every_key_of_the_file_is_understood(tmp_path):
    config = _load(tmp_path, _FULL)
    assert (config.addr, config.advertise_addr) == ("127.0.0.1:9000", "10.0.0.1:9000")
    assert (config.gc_s, config.heartbeat_interval, config.gen_binlog_interval) == (8 * 3600, 3, 5)
    assert config.security.cert_allowed_cn == ("TiDB", "drainer")
    assert config.security.on
    assert not config.storage.sync_log
    assert config.storage.slow_write_threshold == 2.5
    assert config.storage.stop_write_at_available_space == 42 << 20
    assert config.storage.kv.block_cache_capacity == 16777216
    assert config.storage.kv.block_size == 4096  # zero and below mean the default
    assert any("storage.kv.write-L0-pause-trigger" in warning for warning in config.warnings)


def test_a_flag_beats_the_environment_and_that_beats_the_file(tmp_path):
    assert _load(tmp_path, _FULL).node_id == "n1"
    assert _load(tmp_path, _FULL, PUMP_NODE_ID="n2").node_id == "n2"
    assert _load(tmp_path, _FULL, "--node-id=n3", PUMP_NODE_ID="n2").node_id == "n3"
    assert _load(tmp_path, _FULL, "-fake-binlog-interval", "9").gen_binlog_interval == 9
    assert _load(tmp_path, _FULL, PUMP_GC="2").gc_s == 2 * 86400


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("adr = 'x'", "adr"),
        ("[storage]\nsynclog = true", "storage.synclog"),
        ("[storage.kv]\nx = 1", "storage.kv.x"),
        ("[security]\nssl = 'x'", "security.ssl"),
        ("max-message-size = 5", "max-message-size"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_it(tmp_path, text, key):
    with pytest.raises(ConfigError, match=rf"pump\.toml: unknown key {key}$"):
        _load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gc = '0'", "key gc"),
        ("gc = 'soon'", "key gc"),
        ("heartbeat-interval = 0", "key heartbeat-interval"),
        ("addr = 5", "key addr"),
        ("addr = 'nowhere'", "addr"),
        ("log-level = 'loud'", "key log-level"),
        ("[storage]\nsync-log = 1", "storage.sync-log"),
        ("storage = 1", "key storage"),
        ("x = [", "pump.toml"),
        ("[storage]\nstop-write-at-available-space = '10 gips'", "stop-write-at-available-space"),
        ("addr = '0.0.0.0:8250'", "advertise-addr"),
        ("[security]\nssl-cert = 'a'", "ssl-key"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_setting(tmp_path, text, named):
    with pytest.raises(ConfigError, match=named):
        _load(tmp_path, text)


def test_an_unknown_flag_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match="-adr"):
        load(["-adr", "x"], {})
    with pytest.raises(ConfigError, match="-addr needs a value"):
        load(["-addr"], {})


def test_flags_without_meaning_here_are_accepted_with_a_reason():
    config = load(["-binlog-file-size", "5", "-enable-binlog-slice", "-log-rotate=day"], {})
    assert len(config.warnings) == 3
    assert "500 MiB" in config.warnings[0]


@pytest.mark.parametrize(
    ("text", "size"),
    [("10 gib", 10 << 30), ("42 MB", 42_000_000), ("42 mib", 44040192), ("1.5 KiB", 1536), ("77", 77), (5, 5)],
)
def test_sizes_are_read_with_their_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 604800), (1, 86400), ("8h", 28800), ("1h30m", 5400), ("1.5h", 5400)]
)
def test_gc_is_days_or_a_duration(text, seconds):
    assert parse_gc(text) == seconds
