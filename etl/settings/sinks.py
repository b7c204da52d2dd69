"""Settings of the sinks that aren't databases: sections ``[file]`` and ``[kafka]``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sluice.etl.changes.messages import (
    BINLOG,
    LOSSLESS,
    PARTITION_0,
    Dispatch,
    MessageFormat,
    Routing,
)
from sluice.etl.settings.connections import kafka_secrets
from sluice.etl.settings.secrets import from_environment
from sluice.tidb.time_zone import find_zone

REFUSE, CLAIM_CHECK, KEY_ONLY = "refuse", "claim-check", "key-only"
"""Values of `Kafka.large_messages`."""
NONE = "none"
WITH_DDL, WITH_ROWS = "with-ddl", "with-rows"
"""Values of `Kafka.truncate_messages`, beside NONE."""
CORRECTNESS = "correctness"
"""The value of `Kafka.integrity` beside NONE."""
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
"""Values of `Kafka.delivery`."""
MAX_MESSAGE_BYTES = 1_000_000_000
"""The largest message that librdkafka takes."""


@dataclass(frozen=True, slots=True)
class File:
    """Binlog files in the original Drainer's format."""

    dir: str = ""
    """The folder they go to, on a disk of the machine that applies."""
    savepoint: str = ""
    """The file with the checkpoint; ``savepoint`` in `dir` by default."""
    max_file_bytes: int = 512 * 2**20
    """A file ends with the record that reaches this size."""
    compression: str = ""
    """``gzip``: finished files are compressed, as ``<name>.gz``."""
    retention_days: int = 0
    """Finished files are removed after this many days; 0: never."""
    time_zone: str = "UTC"
    """Time zone in which TIMESTAMPs are written; the original used the Drainer's own."""

    def check(self) -> None:
        """Check the section. Raises ValueError that names the key."""
        if not self.dir:
            raise ValueError("[file] dir is missing")
        if self.compression not in ("", "gzip"):
            raise ValueError(f"[file] compression = {self.compression!r}: must be 'gzip' or ''")
        if self.retention_days < 0:
            raise ValueError(f"[file] retention-days = {self.retention_days}: must not be below 0")
        check_zone("file", self.time_zone)


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka topic. Its checks: `sluice.etl.settings.kafka_checks`."""

    brokers: str = ""
    """``host:port``, comma separated."""
    topic: str = ""
    """``<cluster id>_obinlog`` by default. With ``{schema}`` and ``{table}`` in it each table has a
    topic of its own.
    """
    savepoint: str = ""
    """The file with the checkpoint. What is in the topic counts; the file remembers how far an idle
    upstream was followed.
    """
    client_id: str = "tidb_binlog"
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """The largest message that is sent; topic and brokers must allow it (max.message.bytes)."""
    time_zone: str = "UTC"
    """Time zone in which TIMESTAMPs are written; the original used the Drainer's own."""
    timeout_s: int = 60
    """How long brokers may take to answer before the connection is made again, in s."""
    format: str = BINLOG
    """``binlog``: TiDB Binlog's protobuf, one message a transaction. Others have a message a row
    change: ``canal-json``, ``debezium-json``, ``debezium-avro``, ``avro``, ``open-protocol``,
    ``simple``.
    """
    fidelity: str = LOSSLESS
    """``lossless``, or ``as-ticdc``: TiCDC's values also where they lose something."""
    tidb_extension: bool = True
    """Canal-JSON: messages have ``_tidb`` with the commit timestamp."""
    content_compatible: bool = False
    """Canal-JSON: ``old`` has changed columns alone, and types have their parameters."""
    debezium_schema: bool = False
    """Debezium: keys and values carry their schema."""
    integrity: str = NONE
    """Simple protocol: ``correctness``: rows have TiDB's checksum of their columns; or ``none``."""
    registry_url: str = ""
    """Avro: the root of a schema registry with Confluent's API, as in
    ``http://host:8080/apis/ccompat/v7``.
    """
    registry_subjects: str = "topic-name"
    """Avro: how subjects are named: ``topic-name``, ``record-name`` or ``topic-record-name``."""
    registry_user: str = ""
    registry_password_env: str = ""
    """The environment variable with the password of `registry_user`."""
    registry_token_env: str = ""
    """The environment variable with a bearer token for the registry."""
    registry_ca: str = ""
    """A file with the certificates that may sign the registry's; the system's by default."""
    watermark_interval_s: int = 0
    """How often a watermark is sent at most, in s; 0: never. Strict readers refuse watermarks."""
    topics: dict[str, str | int | bool] = field(default_factory=dict)
    """Topics of some tables: by a glob as in ``"shop.*" = "shop-{table}"``. The first that fits
    decides.
    """
    dispatch: str = PARTITION_0
    """What decides on a message's partition: ``partition-0``, ``table``, ``key``, ``commit-ts`` or
    ``columns:A,B``.
    """
    dispatches: dict[str, str | int | bool] = field(default_factory=dict)
    """Dispatches of some tables, by a glob as in `topics`."""
    partitions: int = 0
    """Topics are made with so many partitions, and must have them; 0: they must be there."""
    replication_factor: int = -1
    """Replicas of topics that are made; -1: the brokers' default."""
    topic_config: dict[str, str | int | bool] = field(default_factory=dict)
    """Settings of topics that are made, by Kafka's names, as in ``"retention.ms" = -1``."""
    resume_topic: str = ""
    """The topic that holds where to go on; ``<cluster id>_sluice_resume`` by default. One topic's
    partition 0 needs none.
    """
    transaction_topic: str = ""
    """The topic with BEGIN and END of each transaction; none by default."""
    control_topic: str = ""
    """The topic with DDL and watermarks; by default they go to all partitions of the tables'."""
    truncate_messages: str = WITH_DDL
    """Debezium: where TRUNCATE TABLE is a message with op ``t``. ``with-ddl``: where DDL goes;
    ``with-rows``: in the partition of the table's rows; ``none``: nowhere, and readers keep the
    rows.
    """
    delivery: str = EXACTLY_ONCE
    """``exactly-once``: in Kafka transactions; or ``at-least-once``: idempotent, without them, so
    that offsets have no gaps.
    """
    large_messages: str = REFUSE
    """What becomes of a row that no topic takes: ``refuse``: the pipeline stops; ``claim-check``:
    its key is sent, and the message goes to `claim_check_url`; ``key-only``: its key alone is sent.
    """
    claim_check_url: str = ""
    """The store of messages that were too large: ``file:///dir``, ``s3://``, ``gs://``, ``az://``."""
    claim_check_keep_days: int = 0
    """Files of messages are removed after this many days; 0: never."""
    client: dict[str, str | int | bool] = field(default_factory=dict)
    """Further options of librdkafka by their names, as in ``"security.protocol" = "SASL_SSL"``."""
    client_env: dict[str, str | int | bool] = field(default_factory=dict)
    """Options with secret values: the names of the environment variables that hold them."""
    client_file: dict[str, str | int | bool] = field(default_factory=dict)
    """Options with secret values: the files with the values in their first lines."""
    connection: str = ""
    """Airflow connection of type ``kafka`` with brokers and librdkafka's options; the keys in this
    section count before them.
    """

    @property
    def compression(self) -> str:
        """Return the codec of messages: one of librdkafka's, or ``none``."""
        return str(
            self.client.get("compression.type", self.client.get("compression.codec", "none"))
        )

    def registry_password(self) -> str:
        """Return the registry's password, "" for none. Raises ValueError if it isn't set."""
        variable = self.registry_password_env
        return from_environment("[kafka] registry-password-env", variable) if variable else ""

    def registry_token(self) -> str:
        """Return the registry's bearer token, "" for none. Raises ValueError if it isn't set."""
        variable = self.registry_token_env
        return from_environment("[kafka] registry-token-env", variable) if variable else ""

    @property
    def message_format(self) -> MessageFormat:
        """Return what encodes messages of the format."""
        return MessageFormat(
            self.format,
            self.fidelity,
            self.time_zone,
            self.tidb_extension,
            self.content_compatible,
            self.integrity == CORRECTNESS,
            self.debezium_schema,
            routing=self.routing,
        )

    @property
    def routing(self) -> Routing:
        """Return where each table's messages go. Raises ValueError that names the key."""
        return Routing(
            self.topic,
            tuple((glob, str(topic)) for glob, topic in self.topics.items()),
            _dispatch("dispatch", self.dispatch),
            tuple(
                (glob, _dispatch(f'dispatches "{glob}"', str(text)))
                for glob, text in self.dispatches.items()
            ),
        )

    @property
    def has_resume_record(self) -> bool:
        """Return whether a record in `resume_topic` says where to go on."""
        return (
            bool(self.resume_topic)
            or not self.is_transactional
            or not self.routing.is_one_partition
        )

    @property
    def is_transactional(self) -> bool:
        """Return whether messages go out in Kafka transactions."""
        return self.delivery == EXACTLY_ONCE

    def options(self) -> dict[str, str | int | bool]:
        """Return all further options of librdkafka, secrets too.

        Raises ValueError when a secret isn't at its place in the settings.
        """
        found = dict(self.client)
        if self.connection:
            found |= kafka_secrets(self.connection)
        for key, variable in self.client_env.items():
            try:
                found[key] = os.environ[str(variable)]
            except KeyError:
                raise ValueError(
                    f'[kafka.client-env] "{key}": the environment has no variable {variable}'
                ) from None
        for key, path in self.client_file.items():
            try:
                found[key] = Path(str(path)).read_text(encoding="utf-8").splitlines()[0]
            except (OSError, IndexError) as error:
                raise ValueError(f'[kafka.client-file] "{key}": {path}: {error}') from None
        return found


def _dispatch(key: str, text: str) -> Dispatch:
    try:
        return Dispatch.parse(text)
    except ValueError as error:
        raise ValueError(f"[kafka] {key} = {error}") from None


def check_zone(section: str, name: str) -> None:
    """Raise ValueError for a time zone that isn't known."""
    try:
        find_zone(name)
    except ValueError as error:
        raise ValueError(f"[{section}] time-zone: {error}") from None
