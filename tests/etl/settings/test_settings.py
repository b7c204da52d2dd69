import pytest

from sluice.etl.settings import SettingsError, load_settings, parse_settings

MINIMAL = {
    "upstream": {"pd-urls": "http://127.0.0.1:2379"},
    "relay": {"url": "file:///tmp/relay"},
    "downstream": {"host": "127.0.0.1"},
}


def with_key(section, key, value):
    return MINIMAL | {section: MINIMAL.get(section, {}) | {key: value}}


def test_minimal_settings_have_documented_defaults():
    settings = parse_settings(MINIMAL)
    assert settings.window.max_transactions == 5_000
    assert settings.upstream.initial_commit_ts == -1
    assert settings.downstream.port == 3306


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (with_key("window", "max-transactons", 5), "unknown key [window] max-transactons"),
        (
            with_key("window", "max-transactions", "5"),
            "[window] max-transactions = '5': int expected",
        ),
        (with_key("window", "max-transactions", True), "int expected"),
        (with_key("window", "max-bytes", 0), "must be above 0"),
        (with_key("apply", "mode", "sideways"), "[apply] mode = 'sideways'"),
        (MINIMAL | {"windows": {}}, "unknown section [windows]"),
        ({"relay": {"url": "x"}, "downstream": {"host": "x"}}, "[upstream] pd-urls is missing"),
        (MINIMAL | {"relay": 5}, "[relay] must be a table"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(document, text):
    with pytest.raises(SettingsError) as raised:
        parse_settings(document, "sluice.toml")
    assert text in str(raised.value)
    assert "sluice.toml" in str(raised.value)


def test_settings_come_from_the_file_that_the_environment_names(tmp_path, monkeypatch):
    path = tmp_path / "sluice.toml"
    path.write_text(
        '[upstream]\npd-urls="a"\n[relay]\nurl="b"\n[downstream]\nhost="c"\npassword-env="SLUICE_TEST_PW"\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(path))
    monkeypatch.setenv("SLUICE_TEST_PW", "s3cret")
    settings = load_settings()
    assert settings.downstream.password() == "s3cret"
    assert "s3cret" not in repr(settings)


def test_a_missing_password_variable_is_named(monkeypatch):
    monkeypatch.delenv("SLUICE_TEST_PW", raising=False)
    settings = parse_settings(with_key("downstream", "password-env", "SLUICE_TEST_PW"))
    with pytest.raises(SettingsError, match="SLUICE_TEST_PW"):
        settings.downstream.password()


def archive_of(relay_url, **archive):
    document = {
        "upstream": {"pd-urls": "http://127.0.0.1:1"},
        "relay": {"url": relay_url},
        "downstream": {"host": "db"},
        "archive": archive,
    }
    return parse_settings(document)


@pytest.mark.parametrize(("relay_url", "expected"), [
    ("/var/relay/", "/var/relay/archive"),
    ("file:///var/my%20relay", "file:///var/my%20relay/archive"),
    ("s3://bucket/relay?region=eu&endpoint_override=h:1", "s3://bucket/relay/archive?region=eu&endpoint_override=h:1"),
    ("gs://bucket", "gs://bucket/archive"),
])  # fmt: skip
def test_the_archive_lies_in_the_relay_log_s_folder_unless_it_has_a_place_of_its_own(
    relay_url, expected
):
    assert archive_of(relay_url).archive_url == expected
    assert archive_of(relay_url, url="s3://cold/past").archive_url == "s3://cold/past"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("every", "0m"),
        ("every", "soon"),
        ("url", "s3://key:secret@bucket/x"),
        ("keep", "59m"),
        ("snapshots-every", "1w"),
        ("snapshots-keep", "7"),
        ("drills-every", "often"),
        ("lake", "old"),
    ],
)
def test_an_archive_that_can_t_be_is_refused_without_repeating_secrets(key, value):
    with pytest.raises(SettingsError, match=r"\[archive\]") as refused:
        archive_of("/relay", **{key: value})
    assert "secret@" not in str(refused.value)
