"""Sections [file] and [kafka] of sluice.toml."""

from __future__ import annotations

import tomllib

import pytest

from sluice.etl.changes.messages import MessageFormat
from sluice.etl.downstream.sinks import write_plan_of_sink
from sluice.etl.settings import Settings, SettingsError, parse_settings

BASE = '[upstream]\npd-urls = "http://pd:2379"\n[relay]\nurl = "file:///relay"\n'


def parsed(text: str) -> Settings:
    return parse_settings(tomllib.loads(BASE + text), "sluice.toml")


def test_a_folder_is_all_that_files_need() -> None:
    settings = parsed('[downstream]\ntype = "file"\n[file]\ndir = "/data"\n')
    assert (
        settings.file.dir,
        settings.file.max_file_bytes,
        settings.file.compression,
        settings.file.retention_days,
    ) == ("/data", 512 * 2**20, "", 0)
    assert (settings.time_zone, write_plan_of_sink(settings.target, settings.apply.mode)) == (
        "UTC",
        "file_binlog",
    )


def test_kafka_takes_the_clients_own_options() -> None:
    settings = parsed(
        '[downstream]\ntype = "kafka"\n[kafka]\nbrokers = "a:9092,b:9092"\nsavepoint ='
        ' "/data/savepoint"\ntime-zone = "+08:00"\n[kafka.client]\n"security.protocol" ='
        ' "SASL_SSL"\n"batch.num.messages" = 1024\n"enable.ssl.certificate.verification" ='
        ' true\n[kafka.client-env]\n"sasl.password" = "KAFKA_PASSWORD"\n'
    )
    assert settings.kafka.client == {
        "security.protocol": "SASL_SSL",
        "batch.num.messages": 1024,
        "enable.ssl.certificate.verification": True,
    }
    assert settings.kafka.client_env == {"sasl.password": "KAFKA_PASSWORD"}
    assert (settings.time_zone, write_plan_of_sink(settings.target, settings.apply.mode)) == (
        "+08:00",
        "kafka_binlog",
    )


def test_a_topics_format_names_its_write_plan_and_its_encoder() -> None:
    settings = parsed(
        f'{KAFKA}format = "canal-json"\nfidelity = "as-ticdc"\ntime-zone = "Asia/Shanghai"\n'
        "content-compatible = true\ntidb-extension = false\n"
    )
    assert write_plan_of_sink(settings.target, settings.apply.mode) == "kafka_messages"
    assert settings.message_format == MessageFormat(
        "canal-json", "as-ticdc", "Asia/Shanghai", tidb_extension=False, content_compatible=True
    )
    assert parsed('[downstream]\nhost = "db"\n').message_format == MessageFormat()


def test_a_database_needs_a_host_and_no_folder() -> None:
    assert write_plan_of_sink(parsed('[downstream]\nhost = "db"\n').target, "atomic") == "net"


FILE = '[downstream]\ntype = "file"\n[file]\n'
KAFKA = '[downstream]\ntype = "kafka"\n[kafka]\nbrokers = "a:1"\nsavepoint = "/s"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[downstream]\ntype = "oracle"\n',
            r"\[downstream\] type = 'oracle': must be 'mysql', 'file' or 'kafka'",
        ),
        ("", r"\[downstream\] host is missing"),
        ('[downstream]\ntype = "file"\n', r"\[file\] dir is missing"),
        (
            f'{FILE}dir = "/d"\ncompression = "zip"\n',
            r"\[file\] compression = 'zip': must be 'gzip' or ''",
        ),
        (
            f'{FILE}dir = "/d"\nretention-days = -1\n',
            r"\[file\] retention-days = -1: must not be below 0",
        ),
        (
            f'{FILE}dir = "/d"\nmax-file-bytes = 0\n',
            r"\[file\] max-file-bytes = 0: must be above 0",
        ),
        (
            f'{FILE}dir = "/d"\ntime-zone = "Nowhere"\n',
            r"\[file\] time-zone: unknown time zone 'Nowhere'",
        ),
        ('[downstream]\ntype = "kafka"\n', r"\[kafka\] brokers is missing"),
        (
            '[downstream]\ntype = "kafka"\n[kafka]\nbrokers = "a:1"\n',
            r"\[kafka\] savepoint is missing",
        ),
        (
            f"{KAFKA}max-message-bytes = 2000000000\n",
            r"\[kafka\] max-message-bytes = 2000000000: the client takes 1000000000 at most",
        ),
        (
            f'{KAFKA}[kafka.client]\n"sasl.password" = "x"\n',
            r'\[kafka.client\] "sasl.password" looks like a secret: .*\[kafka.client-env\]',
        ),
        (f'{KAFKA}[kafka.client]\n"ssl.key.pem" = "x"\n', r'"ssl.key.pem" looks like a secret'),
        (f'{KAFKA}[kafka.client]\n"acks" = 1\n', r'\[kafka.client\] "acks" is set by Sluice'),
        (
            f'{KAFKA}[kafka.client-env]\n"transactional.id" = "x"\n',
            r'\[kafka.client-env\] "transactional.id" is set by Sluice',
        ),
        (
            f'{KAFKA}format = "canal-json"\ntopic = "a b"\n',
            r"\[kafka\] topic = 'a b': a topic's name has letters",
        ),
        (
            f'{KAFKA}format = "canal-json"\nlarge-messages = "split"\n',
            r"\[kafka\] large-messages = 'split': must be one of refuse, claim-check, key-only",
        ),
        (
            f'{KAFKA}format = "debezium-json"\nlarge-messages = "key-only"\n',
            r"with format = 'debezium-json' readers would take a key alone for a row with NULLs",
        ),
        (
            f'{KAFKA}format = "canal-json"\ntidb-extension = false\nlarge-messages = "key-only"\n',
            r"with tidb-extension = true",
        ),
        (
            f'{KAFKA}format = "canal-json"\nlarge-messages = "claim-check"\n',
            r"large-messages = 'claim-check' and claim-check-url go together",
        ),
        (
            f'{KAFKA}format = "simple"\nclaim-check-url = "s3://b"\n',
            r"large-messages = 'claim-check' and claim-check-url go together",
        ),
        (
            f'{KAFKA}format = "simple"\nlarge-messages = "claim-check"\n'
            'claim-check-url = "s3://key:secret@b/x"\n',
            r"claim-check-url: relay URL s3://.*credentials",
        ),
        (
            f'{KAFKA}format = "simple"\nlarge-messages = "claim-check"\n'
            'claim-check-url = "s3://b/x"\nclaim-check-keep-days = -1\n',
            r"claim-check-keep-days = -1: must not be below 0",
        ),
        (
            f'{KAFKA}format = "canal-json"\n[kafka.topics]\n"a.*" = "{{x}}"\n',
            r"\[kafka\] topics \"a\.\*\" = '{x}': a topic's name has letters",
        ),
        (
            f'{KAFKA}format = "canal-json"\ndispatch = "columns:a,"\n',
            r"\[kafka\] dispatch = 'columns:a,': must be one of partition-0, table, key",
        ),
        (
            f'{KAFKA}format = "canal-json"\n[kafka.dispatches]\n"a.*" = "rowid"\n',
            r"\[kafka\] dispatches \"a\.\*\" = 'rowid': must be one of",
        ),
        (
            f'{KAFKA}format = "canal-json"\ncontrol-topic = "x"\ntransaction-topic = "x"\n',
            r"\[kafka\] transaction-topic = 'x': must be a topic of its own",
        ),
        (
            f'{KAFKA}format = "canal-json"\nresume-topic = "{{table}}"\n',
            r"\[kafka\] resume-topic = '{table}': must be one topic's name",
        ),
        (
            f'{KAFKA}format = "debezium-json"\ntruncate-messages = "t"\n',
            r"\[kafka\] truncate-messages = 't': must be one of with-ddl, with-rows, none",
        ),
        (
            f'{KAFKA}format = "canal-json"\ntruncate-messages = "none"\n',
            r"\[kafka\] truncate-messages = 'none': op t is in format = 'debezium-json'",
        ),
        (
            f'{KAFKA}format = "debezium-json"\nfidelity = "as-ticdc"\ntruncate-messages = "none"\n',
            r"\[kafka\] truncate-messages = 'none': op t .* with fidelity = 'lossless' alone",
        ),
        (
            f'{KAFKA}format = "debezium-json"\ntruncate-messages = "with-rows"\npartitions = 2\n'
            '[kafka.dispatches]\n"d.*" = "key"\n',
            r"truncate-messages = 'with-rows': with dispatch = 'key' a table's rows are in several",
        ),
        (
            f'{KAFKA}format = "canal-json"\ndelivery = "at-most-once"\n',
            r"\[kafka\] delivery = 'at-most-once': must be exactly-once or at-least-once",
        ),
        (
            f'{KAFKA}dispatch = "key"\n',
            r"\[kafka\] format = 'binlog' goes to partition 0 of one topic, exactly once",
        ),
        (
            f'{KAFKA}format = "maxwell"\n',
            r"\[kafka\] format = 'maxwell'; must be one of binlog, avro",
        ),
        (
            f'{KAFKA}format = "avro"\n',
            r"\[kafka\] registry-url = '': format = 'avro' needs a schema registry",
        ),
        (
            f'{KAFKA}format = "debezium-avro"\nregistry-url = "http://c"\nfidelity = "as-ticdc"\n',
            r"\[kafka\] fidelity = 'as-ticdc': format = 'debezium-avro' is lossless alone",
        ),
        (
            f'{KAFKA}format = "avro"\nregistry-url = "http://a:b@c"\n',
            r"\[kafka\] registry-url must not hold a password",
        ),
        (
            f'{KAFKA}format = "avro"\nregistry-url = "http://c"\nregistry-user = "x"\n',
            r"\[kafka\] registry-user and registry-password-env go together",
        ),
        (
            f'{KAFKA}format = "avro"\nregistry-url = "http://c"\nregistry-subjects = "x"\n',
            r"\[kafka\] registry-subjects = 'x': must be one of topic-name, record-name",
        ),
        (
            f'{KAFKA}format = "avro"\nregistry-url = "http://c"\ntidb-extension = false\n',
            r"\[kafka\] tidb-extension = false: a lossless delete in Avro is shown by it",
        ),
        (
            f'{KAFKA}format = "canal-json"\nregistry-url = "http://c"\n',
            r"\[kafka\] registry-url is for format = 'avro' or 'debezium-avro', not for 'canal",
        ),
        (
            f'{KAFKA}format = "canal-json"\nintegrity = "correctness"\n',
            r"\[kafka\] integrity is for format = 'simple', not for 'canal-json'",
        ),
        (
            f'{KAFKA}format = "simple"\nintegrity = "some"\n',
            r"\[kafka\] integrity = 'some': must be none or correctness",
        ),
        (
            f'{KAFKA}format = "simple"\nintegrity = "correctness"\ntime-zone = "+08:00"\n',
            r"\[kafka\] time-zone = '\+08:00': TiDB's checksum is of TIMESTAMPs in UTC",
        ),
        (f'{KAFKA}format = "csv"\n', r"\[kafka\] format = 'csv'; must be one of binlog"),
        (
            f'{KAFKA}format = "canal-json"\nfidelity = "some"\n',
            r"\[kafka\] fidelity = 'some': must be one of lossless, as-ticdc",
        ),
        (
            f'{KAFKA}format = "canal-json"\ndebezium-schema = true\n',
            r"\[kafka\] debezium-schema is for format = 'debezium-json', not for 'canal-json'",
        ),
        (
            f"{KAFKA}content-compatible = true\n",
            r"\[kafka\] content-compatible is for format = 'canal-json', not for 'binlog'",
        ),
        (
            f'{KAFKA}format = "canal-json"\ntidb-extension = false\nwatermark-interval-s = 1\n',
            r"\[kafka\] watermark-interval-s needs tidb-extension = true",
        ),
        (
            f"{KAFKA}watermark-interval-s = 1\n",
            r"\[kafka\] watermark-interval-s is for format = .*'simple', not for 'binlog'",
        ),
        (
            f'{KAFKA}format = "open-protocol"\nwatermark-interval-s = -1\n',
            r"\[kafka\] watermark-interval-s = -1: must not be below 0",
        ),
        (
            f'{KAFKA}format = "canal-json"\ntime-zone = "Europe/Berlin"\n',
            r"\[kafka\] time-zone = 'Europe/Berlin': where clocks are set back, two moments",
        ),
        (
            f'{KAFKA}format = "debezium-json"\ntime-zone = "+08:00"\n',
            r"\[kafka\] time-zone = '\+08:00': format = 'debezium-json' has UTC",
        ),
        (
            f'{KAFKA}[kafka.client]\n"linger.ms" = [1]\n',
            r"\[kafka.client\] linger.ms = \[1\]: a text, a number, true or false expected",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parsed(text)


def test_the_value_of_a_secret_is_not_repeated_in_the_error() -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(f'{KAFKA}[kafka.client]\n"sasl.password" = "hunter2"\n')
    assert "hunter2" not in str(caught.value)
