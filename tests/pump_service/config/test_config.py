"""pump.toml, flags and environment: the original's names, defaults, units and precedence."""

import dataclasses
import json

import pytest

from sluice.pump_service.config import ConfigError, load, parse_gc, parse_size

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
    assert (config.heartbeat_interval, config.gen_binlog_interval, config.metrics_interval) == (
        2,
        3,
        15,
    )
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
        ("[security]\nssl-ca = 'a'", "need ssl-cert"),
        ("[security]\ncert-allowed-cn = ['a']", "need ssl-cert"),
        ("[security]\nssl-cert = 'a'\nssl-key = 'b'\ncert-allowed-cn = ['a']", "ssl-ca"),
        ("[security]\nssl-ca = 5", "security.ssl-ca"),
        ("[security]\ncert-allowed-cn = 5", "security.cert-allowed-cn"),
        ("gc = '-3h'", "key gc"),
        ("pd-urls = ' '", "pd-urls"),
        ("metrics-interval = 'often'", "key metrics-interval"),
        ("capture = 1", "key capture"),
        ("[capture]\nenabled = 'yes'", "capture.enabled"),
        ("[capture]\nstart-ts = -1", "capture.start-ts"),
        ("[capture]\nshare = 2", "capture.share"),
        ("[capture]\nshares = 0", "capture.shares"),
        ("[capture]\nshares = '3'", "capture.shares"),
        ("[capture]\nshare = '2/3'\nshares = 3", "capture.share and capture.shares contradict"),
        ("addr = '127.0.0.1:0'\n[capture]\nshares = 3", "addr: with capture.shares"),
        ("[capture]\nshare = '4/3'", "capture.share"),
        ("[capture]\nmemory = 'much'", "capture.memory"),
        ("[capture]\nmemroy = 1", "unknown key memroy"),
        ("gc-safepoint-ttl = 0\n[capture]", "gc-safepoint-ttl"),
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
    [
        ("10 gib", 10 << 30),
        ("42 MB", 42_000_000),
        ("42 mib", 44040192),
        ("1.5 KiB", 1536),
        ("77", 77),
        (5, 5),
    ],
)
def test_sizes_are_read_with_their_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 604800), (1, 86400), ("8h", 28800), ("1h30m", 5400), ("1.5h", 5400)]
)
def test_gc_is_days_or_a_duration(text, seconds):
    assert parse_gc(text) == seconds


# Every setting of the original: its key in the file (None: flag only), its flag (None: file only),
# the default, a text that sets it, and what that means here. `at` is the field of Config, with a
# dot inside of `security` or `storage`.
_LOCAL = object()  # <local ip>:8250
_SETTINGS = [
    # (key, flag, at, default, given, value)
    ("addr", "addr", "addr", _LOCAL, "127.0.0.1:9001", "127.0.0.1:9001"),
    (
        "advertise-addr",
        "advertise-addr",
        "advertise_addr",
        _LOCAL,
        "10.1.1.1:9001",
        "10.1.1.1:9001",
    ),
    ("socket", "socket", "socket", "", "/run/pump.sock", "/run/pump.sock"),
    (
        "pd-urls",
        "pd-urls",
        "pd_urls",
        "http://127.0.0.1:2379",
        "http://a:1,http://b:2",
        "http://a:1,http://b:2",
    ),
    ("data-dir", "data-dir", "data_dir", "data.pump", "/data", "/data"),
    ("heartbeat-interval", "heartbeat-interval", "heartbeat_interval", 2, "7", 7),
    ("gc", "gc", "gc_s", 7 * 86400, "8h", 8 * 3600),
    ("log-level", "L", "log_level", "info", "debug", "debug"),
    ("log-file", "log-file", "log_file", "", "/log/pump.log", "/log/pump.log"),
    ("node-id", "node-id", "node_id", "", "pump-1", "pump-1"),
    ("gen-binlog-interval", "fake-binlog-interval", "gen_binlog_interval", 3, "4", 4),
    ("prewrite-timeout", "prewrite-timeout", "prewrite_timeout", 600, "90", 90),
    ("gc-safepoint-ttl", "gc-safepoint-ttl", "gc_safepoint_ttl", 86_400, "0", 0),
    ("metrics-addr", "metrics-addr", "metrics_addr", "", "gateway:9091", "gateway:9091"),
    ("metrics-interval", "metrics-interval", "metrics_interval", 15, "30", 30),
    (None, "max-message-size", "max_message_size", 2**31 - 1, "1000000", 1_000_000),
    ("security.ssl-ca", "ssl-ca", "security.ssl_ca", "", "ca.pem", "ca.pem"),
    ("security.ssl-cert", "ssl-cert", "security.ssl_cert", "", "cert.pem", "cert.pem"),
    ("security.ssl-key", "ssl-key", "security.ssl_key", "", "key.pem", "key.pem"),
    (
        "security.cert-allowed-cn",
        "cert-allowed-cn",
        "security.cert_allowed_cn",
        (),
        "TiDB,drainer",
        ("TiDB", "drainer"),
    ),
    *(
        (f"security.{key}", key, f"security.{key.replace('-', '_')}", (), "a,b", ("a", "b"))
        for key in (
            "write-allowed-cn",
            "read-allowed-cn",
            "operate-allowed-cn",
            "scrape-allowed-cn",
        )
    ),
    ("storage.sync-log", None, "storage.sync_log", True, False, False),
    ("storage.kv_chan_cap", None, "storage.kv_chan_cap", 131_072, 65536, 65536),
    ("storage.slow_write_threshold", None, "storage.slow_write_threshold", 1.0, 2.5, 2.5),
    (
        "storage.stop-write-at-available-space",
        None,
        "storage.stop_write_at_available_space",
        10 << 30,
        "42 MB",
        42 * 10**6,
    ),
    (
        "storage.kv.block-cache-capacity",
        None,
        "storage.kv.block_cache_capacity",
        8388608,
        1 << 20,
        1 << 20,
    ),
    ("storage.kv.block-restart-interval", None, "storage.kv.block_restart_interval", 16, 8, 8),
    ("storage.kv.block-size", None, "storage.kv.block_size", 4096, 8192, 8192),
    ("storage.kv.compaction-L0-trigger", None, "storage.kv.compaction_l0_trigger", 8, 4, 4),
    (
        "storage.kv.compaction-table-size",
        None,
        "storage.kv.compaction_table_size",
        67108864,
        1 << 20,
        1 << 20,
    ),
    ("storage.kv.write-buffer", None, "storage.kv.write_buffer", 67108864, 1 << 20, 1 << 20),
]
# Accepted without effect: key in the file, flag, text.
_IGNORED = [
    ("storage.kv.compaction-total-size", None, 536870912),
    ("storage.kv.compaction-total-size-multiplier", None, 8.0),
    ("storage.kv.write-L0-pause-trigger", None, 24),
    ("storage.kv.write-L0-slowdown-trigger", None, 17),
    (None, "binlog-file-size", "5"),
    (None, "enable-binlog-slice", "true"),
    (None, "binlog-slice-size", "5"),
    (None, "log-rotate", "day"),
    (None, "enable-debug", "true"),
]
# What one setting needs beside it to be valid.
_BESIDE = {
    "security.ssl-ca": {"security.ssl-cert": "cert.pem", "security.ssl-key": "key.pem"},
    "security.ssl-cert": {"security.ssl-key": "key.pem"},
    "security.ssl-key": {"security.ssl-cert": "cert.pem"},
    **{
        f"security.{role}-allowed-cn": {
            "security.ssl-ca": "ca.pem",
            "security.ssl-cert": "cert.pem",
            "security.ssl-key": "key.pem",
        }
        for role in ("cert", "write", "read", "operate", "scrape")
    },
}


def _at(config, path):
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _toml(values):
    tables = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(
        (f"[{table}]\n" if table else "") + "\n".join(tables[table]) for table in sorted(tables)
    )


@pytest.mark.parametrize(
    ("key", "flag", "at", "default", "given", "value"),
    _SETTINGS,
    ids=[row[0] or row[1] for row in _SETTINGS],
)
def test_every_setting_of_the_original_works_from_each_place_it_can_come_from(
    tmp_path, key, flag, at, default, given, value
):
    found = _at(load([], {}), at)
    assert found.endswith(":8250") if default is _LOCAL else found == default
    beside = _BESIDE.get(key, {})
    if key:
        config = _load(tmp_path, _toml({key: given} | beside))
        assert _at(config, at) == value
    else:
        with pytest.raises(ConfigError, match=f"unknown key {flag}$"):
            _load(tmp_path, _toml({flag: given}))
    if flag:
        base = _toml(beside)
        for spelled in (["-" + flag, given], [f"--{flag}={given}"]):
            assert _at(_load(tmp_path, base, *spelled), at) == value
        variable = "PUMP_" + flag.upper().replace("-", "_")
        assert _at(_load(tmp_path, base, **{variable: given}), at) == value
    else:
        name = key.rsplit(".", 1)[-1]
        with pytest.raises(ConfigError, match=f"unknown flag -{name}"):
            load([f"-{name}", str(given)], {})


@pytest.mark.parametrize(
    ("key", "flag", "given"), _IGNORED, ids=[row[0] or row[1] for row in _IGNORED]
)
def test_a_setting_without_effect_here_is_accepted_with_a_warning_that_names_it_and_says_why(
    tmp_path, key, flag, given
):
    plain = load([], {})
    configs = []
    if key:
        configs.append(_load(tmp_path, _toml({key: given})))
    else:
        configs.append(load([f"-{flag}={given}"], {}))
        configs.append(load([], {"PUMP_" + flag.upper().replace("-", "_"): given}))
    for config in configs:
        (warning,) = config.warnings
        assert (key or flag) in warning.replace("PUMP_", "").lower().replace(
            "_", "-"
        ) or key in warning
        reason = warning.split(" has no effect: ")[1]
        assert len(reason.split()) >= 4
        assert dataclasses.replace(config, warnings=()) == plain


def test_bare_flags_need_no_value():
    assert load(["-enable-debug", "-enable-binlog-slice", "-gc", "1"], {}).gc_s == 86400


def test_all_unknown_keys_are_named_at_once(tmp_path):
    text = "adr = 1\n[storage]\nsynclog = true\n[storage.kv]\nx = 1\n[drainer]\ny = 1"
    with pytest.raises(
        ConfigError, match=r"unknown keys adr, storage\.synclog, storage\.kv\.x, drainer$"
    ):
        _load(tmp_path, text)


def test_variables_of_others_with_the_same_prefix_are_left_alone():
    # What Kubernetes sets for a service called pump.
    others = {
        "PUMP_PORT": "tcp://10.0.0.1:8250",
        "PUMP_SERVICE_HOST": "10.0.0.1",
        "PUMP_PORT_8250_TCP_ADDR": "x",
    }
    assert load([], others) == load([], {})


def test_the_file_may_be_named_by_a_variable_and_the_variable_beats_what_is_in_it(tmp_path):
    path = tmp_path / "pump.toml"
    path.write_text('node-id = "file"\nlog-level = "warn"')
    assert load([], {"PUMP_CONFIG": str(path)}).node_id == "file"
    config = load(["-config", str(path)], {"PUMP_L": "error", "PUMP_NODE_ID": "variable"})
    assert (config.node_id, config.log_level) == ("variable", "error")


def test_settings_that_weaken_durability_or_have_a_ceiling_are_warned_of(tmp_path):
    config = _load(tmp_path, "[storage]\nsync-log = false\nkv_chan_cap = 1048576")
    assert len(config.warnings) == 2
    assert any(
        "storage.sync-log" in warning and "power cut" in warning for warning in config.warnings
    )
    assert any(
        "storage.kv_chan_cap" in warning and "262144" in warning for warning in config.warnings
    )


@pytest.mark.parametrize("key", ["slow_write_threshold", "kv_chan_cap"])
def test_zero_and_below_mean_the_default(tmp_path, key):
    plain = load([], {})
    for value in (0, -1):
        assert _load(tmp_path, f"[storage]\n{key} = {value}").storage == plain.storage


def test_capture_is_switched_by_its_table_or_by_a_flag(tmp_path):
    assert not load([], {}).capture.enabled
    assert load(["-capture"], {}).capture.enabled
    assert load([], {"PUMP_CAPTURE": "true"}).capture.enabled
    text = "[capture]\nstart-ts = 470740408549507073\nmemory = '1 gib'"
    found = _load(tmp_path, text).capture
    assert (found.enabled, found.start_ts, found.memory) == (True, 470740408549507073, 1 << 30)
    assert found.share.is_whole
    assert str(_load(tmp_path, "[capture]\nshare = '2/3'").capture.share) == "2/3"
    assert _load(tmp_path, "[capture]\nshares = 3").capture.shares == 3
    assert not _load(tmp_path, "[capture]\nenabled = false").capture.enabled
    off = _load(tmp_path, text, "-capture=false").capture
    assert (off.enabled, off.memory) == (False, 1 << 30)
    with pytest.raises(ConfigError, match="capture"):
        load(["-capture=maybe"], {})
