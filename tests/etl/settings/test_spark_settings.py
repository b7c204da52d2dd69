"""Section [spark]: what is possible, and what is said of what isn't."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.settings import SettingsError, Spark, load_settings, parse_settings

_REST = {
    "upstream": {"pd-urls": "http://pd"},
    "relay": {"url": "s3://bucket/relay"},
    "downstream": {"host": "db"},
}


def spark(**keys: Any) -> Spark:
    return parse_settings(
        _REST | {"spark": {key.replace("_", "-"): value for key, value in keys.items()}}
    ).spark


@pytest.mark.parametrize(
    "master",
    [
        "local[*]",
        "local[4]",
        "spark://one:7077",
        "spark://one:7077,two:7077",
        "yarn",
        "k8s://https://10.0.0.1:443",
    ],
)
def test_every_master_of_spark_s_is_possible(master: str) -> None:
    assert spark(master=master).master == master


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"remote": "spark://one:7077"},
            r"that's a master.*\[spark\] master.*sluice spark connect",
        ),
        ({"remote": "yarn"}, "that's a master"),
        ({"remote": "http://one:15002"}, "sc://host:port expected"),
        ({"remote": "sc://one:15002/;token=hush"}, r"token-env, token-file or token-connection"),
        ({"master": "mesos://one"}, r"\[spark\] master = 'mesos://one'"),
        ({"package": "maybe"}, r'\[spark\] package = \'maybe\': "auto", "always"'),
        ({"environment": "env.tar"}, r"a \.tar\.gz, \.tgz or \.zip expected"),
        ({"ssl_cert": "a.pem"}, "ssl-cert and ssl-key belong together"),
        ({"token_env": "A", "token_file": "b"}, "token-env and token-file: one of them"),
        (
            {"remote": "sc://one:1", "token_env": "A"},
            r"plain text: ssl = true is needed for sc://one:1",
        ),
        ({"token": "hush"}, "tokens are not written into this file.*token-env"),
        ({"conf": {"executor.memory": "1g"}}, r"begin with spark\."),
        (
            {"conf": {"spark.master": "yarn"}},
            r"\[spark\.conf\] spark\.master: \[spark\] master sets it",
        ),
        (
            {"conf": {"spark.hadoop.fs.s3a.secret.key": "hush"}},
            "secrets are not written into this file",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_no_secret_is_shown(
    keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        spark(**keys)
    assert "hush" not in str(caught.value)


def test_settings_of_spark_s_need_no_quotes_and_are_texts_for_spark(tmp_path: Path) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://pd"\n[relay]\nurl = "s3://b/r"\n[downstream]\nhost = "db"\n'
        '[spark.conf]\nspark.executor.memory = "2g"\nspark.executor.cores = 2\n'
        '"spark.dynamicAllocation.enabled" = true\n'
    )
    assert load_settings(config).spark.conf_texts == {
        "spark.executor.memory": "2g",
        "spark.executor.cores": "2",
        "spark.dynamicAllocation.enabled": "true",
    }


def test_what_may_take_long_has_the_server_of_spark_batch_and_replication_the_other(
    tmp_path: Path,
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://pd"\n[relay]\nurl = "s3://b/r"\n[downstream]\nhost = "db"\n'
        '[spark]\nremote = "sc://here:1"\nssl = true\ntoken-env = "A"\n'
        '[spark.batch]\nremote = "sc://there:2"\ntoken-env = "B"\n'
    )
    both = load_settings(config).spark
    batch = both.for_batch()
    assert (both.remote, both.token_env) == ("sc://here:1", "A")
    assert (batch.remote, batch.token_env, batch.ssl) == ("sc://there:2", "B", True)
    assert batch.for_batch() == batch
    assert spark().for_batch() == spark()


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"remotes": "sc://x:1"}, "unknown key [spark.batch] remotes"),
        ({"conf": "x"}, "unknown key [spark.batch] conf"),
        ({"ssl": "yes"}, "[spark.batch] ssl = 'yes': a bool expected"),
        ({"remote": "http://x"}, "http://x"),
    ],
)
def test_a_key_of_spark_batch_that_means_nothing_is_refused(batch: dict, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        spark(batch=batch).check()


def test_the_token_is_read_where_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("one\n")
    monkeypatch.setenv("SPARK_TOKEN", "two")
    assert spark(token_file=str(tmp_path / "token")).token() == "one"
    assert spark(token_env="SPARK_TOKEN").token() == "two"
    assert spark().token() == ""
    monkeypatch.delenv("SPARK_TOKEN")
    with pytest.raises(
        SettingsError,
        match=r"\[spark\] token-env: the environment has no variable SPARK_TOKEN; `export SPARK_",
    ):
        spark(token_env="SPARK_TOKEN").token()


@pytest.mark.parametrize(
    ("remote", "here"),
    [
        ("sc://127.0.0.1:15002", True),
        ("sc://localhost", True),
        ("sc://[::1]:15002", True),
        ("sc://spark:15002", False),
    ],
)
def test_a_server_on_this_machine_is_told_by_its_address(remote: str, here: bool) -> None:
    assert spark(remote=remote).is_on_this_machine is here
