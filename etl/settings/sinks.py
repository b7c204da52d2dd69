"""Settings of the sinks that aren't databases: sections ``[file]`` and ``[kafka]``."""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from sluice.etl.changes.messages import (
    BINLOG,
    FIDELITIES,
    FORMATS,
    LOSSLESS,
    PARTITION_0,
    Dispatch,
    MessageFormat,
    Routing,
    check_expression,
)
from sluice.etl.settings.secrets import from_environment
from sluice.relay import RelayError
from sluice.relay.url import parse_url
from sluice.tidb.time_zone import find_zone

_SECRET = re.compile(r"password|secret|\.pem$|bearer\.token|oauthbearer\.config")
_RESERVED_OPTIONS = {
    "bootstrap.servers",
    "client.id",
    "transactional.id",
    "enable.idempotence",
    "acks",
    "request.required.acks",
    "isolation.level",
    "message.max.bytes",
    "group.id",
    "enable.auto.commit",
}
REFUSE, CLAIM_CHECK, KEY_ONLY = "refuse", "claim-check", "key-only"
_LARGE_MESSAGES = (REFUSE, CLAIM_CHECK, KEY_ONLY)
_WITH_KEYS_ALONE = ("canal-json", "open-protocol", "simple")
"""Formats with a mark for messages that have the key's columns alone."""
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_MAX_MESSAGE_BYTES = 1_000_000_000
_WITH_REGISTRY = ("avro", "debezium-avro")
_WITH_ZONE = ("canal-json", "open-protocol", "avro", "simple")
"""Formats whose TIMESTAMPs are in a zone that can be set."""
_WITH_WATERMARKS = ("canal-json", "debezium-json", "open-protocol", "simple")
_SUBJECTS = ("topic-name", "record-name", "topic-record-name")


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
        _check_zone("file", self.time_zone)


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka topic."""

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
    max_message_bytes: int = _MAX_MESSAGE_BYTES
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

    def check(self) -> None:
        """Check the section. Raises ValueError that names the key."""
        for key in ("brokers", "savepoint"):
            if not getattr(self, key):
                raise ValueError(f"[kafka] {key} is missing")
        if self.max_message_bytes > _MAX_MESSAGE_BYTES:
            raise ValueError(
                f"[kafka] max-message-bytes = {self.max_message_bytes}: the client takes"
                f" {_MAX_MESSAGE_BYTES} at most"
            )
        for section in ("client", "client-env", "client-file"):
            for key in getattr(self, section.replace("-", "_")):
                if key in _RESERVED_OPTIONS:
                    raise ValueError(
                        f'[kafka.{section}] "{key}" is set by Sluice: exactly once rests on it, or'
                        " [kafka] has a key for it"
                    )
                if section == "client" and _SECRET.search(key):
                    raise ValueError(
                        f'[kafka.client] "{key}" looks like a secret: name the environment variable'
                        " that holds it in [kafka.client-env], or the file in [kafka.client-file]"
                    )
        _check_zone("kafka", self.time_zone)
        self._check_format()
        self._check_topics()
        self._check_large_messages()

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

    def _check_topics(self) -> None:
        named = [("topic", self.topic)] if self.topic else []
        named += [(f'topics "{glob}"', str(topic)) for glob, topic in self.topics.items()]
        for key, expression in named:
            try:
                check_expression(expression)
            except ValueError as error:
                raise ValueError(f"[kafka] {key} = {error}") from None
        routing = self.routing
        others = {
            key: name
            for key in ("resume-topic", "transaction-topic", "control-topic")
            if (name := getattr(self, key.replace("-", "_")))
        }
        for key, name in others.items():
            if "{" in name:
                raise ValueError(f"[kafka] {key} = {name!r}: must be one topic's name")
            check_expression(name)
        taken = [*others.values(), *(expression for _, expression in named)]
        for key, name in others.items():
            if taken.count(name) > 1:
                raise ValueError(f"[kafka] {key} = {name!r}: must be a topic of its own")
        if self.delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
            raise ValueError(
                f"[kafka] delivery = {self.delivery!r}: must be {EXACTLY_ONCE} or {AT_LEAST_ONCE}"
            )
        spread = not routing.is_one_partition or not self.is_transactional
        if self.format == BINLOG and (others or spread):
            raise ValueError(
                "[kafka] format = 'binlog' goes to partition 0 of one topic, exactly once: choose"
                " another format for other topics, partitions and deliveries"
            )
        if self.partitions < 0:
            raise ValueError(f"[kafka] partitions = {self.partitions}: must not be below 0")

    def _check_large_messages(self) -> None:
        if self.large_messages not in _LARGE_MESSAGES:
            raise ValueError(
                f"[kafka] large-messages = {self.large_messages!r}: must be one of"
                f" {', '.join(_LARGE_MESSAGES)}"
            )
        marks = self.format in _WITH_KEYS_ALONE and self.tidb_extension
        if self.large_messages != REFUSE and not marks:
            raise ValueError(
                f"[kafka] large-messages = {self.large_messages!r}: with format = {self.format!r}"
                " readers would take a key alone for a row with NULLs; possible are"
                f" {', '.join(_WITH_KEYS_ALONE)}, with tidb-extension = true"
            )
        if (self.large_messages == CLAIM_CHECK) != bool(self.claim_check_url):
            raise ValueError(
                f"[kafka] large-messages = {CLAIM_CHECK!r} and claim-check-url go together"
            )
        if self.claim_check_url:
            try:
                parse_url(self.claim_check_url)
            except RelayError as error:
                raise ValueError(f"[kafka] claim-check-url: {error}") from None
        if self.claim_check_keep_days < 0:
            raise ValueError(
                f"[kafka] claim-check-keep-days = {self.claim_check_keep_days}: must not be below 0"
            )

    def _check_format(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(
                f"[kafka] format = {self.format!r}; must be one of {', '.join(FORMATS)}"
            )
        if self.fidelity not in FIDELITIES:
            raise ValueError(
                f"[kafka] fidelity = {self.fidelity!r}: must be one of {', '.join(FIDELITIES)}"
            )
        for key, is_set, formats in (
            ("fidelity", self.fidelity != LOSSLESS, FORMATS[1:]),
            ("tidb-extension", not self.tidb_extension, ("canal-json", "avro")),
            ("content-compatible", self.content_compatible, ("canal-json",)),
            ("debezium-schema", self.debezium_schema, ("debezium-json",)),
            ("watermark-interval-s", self.watermark_interval_s != 0, _WITH_WATERMARKS),
            ("registry-url", self.registry_url != "", _WITH_REGISTRY),
        ):
            if is_set and self.format not in formats:
                raise ValueError(
                    f"[kafka] {key} is for format = {' or '.join(map(repr, formats))}, not for"
                    f" {self.format!r}"
                )
        if self.watermark_interval_s < 0:
            raise ValueError(
                f"[kafka] watermark-interval-s = {self.watermark_interval_s}: must not be below 0"
            )
        if self.watermark_interval_s and not self.tidb_extension:
            raise ValueError("[kafka] watermark-interval-s needs tidb-extension = true")
        if self.format.startswith("debezium") and self.time_zone != "UTC":
            raise ValueError(
                f"[kafka] time-zone = {self.time_zone!r}: format = {self.format!r} has UTC"
            )
        if self.format == "debezium-avro" and self.fidelity != LOSSLESS:
            raise ValueError(
                f"[kafka] fidelity = {self.fidelity!r}: format = 'debezium-avro' is lossless alone"
            )
        self._check_registry()
        if self.format in _WITH_ZONE and self.fidelity == LOSSLESS:
            zone = find_zone(self.time_zone)
            if not isinstance(zone, datetime.timezone) and self.time_zone != "UTC":
                raise ValueError(
                    f"[kafka] time-zone = {self.time_zone!r}: where clocks are set back, two"
                    " moments have one text; use 'UTC', an offset as in '+08:00', or fidelity ="
                    " 'as-ticdc'"
                )

    def _check_registry(self) -> None:
        if self.registry_subjects not in _SUBJECTS:
            raise ValueError(
                f"[kafka] registry-subjects = {self.registry_subjects!r}: must be one of"
                f" {', '.join(_SUBJECTS)}"
            )
        if self.format in _WITH_REGISTRY and not self.registry_url.startswith(
            ("http://", "https://")
        ):
            raise ValueError(
                f"[kafka] registry-url = {self.registry_url!r}: format = {self.format!r} needs a"
                " schema registry, as in 'http://host:8081'"
            )
        if "@" in self.registry_url:
            raise ValueError(
                "[kafka] registry-url must not hold a password: set registry-user and"
                " registry-password-env"
            )
        if bool(self.registry_user) != bool(self.registry_password_env):
            raise ValueError("[kafka] registry-user and registry-password-env go together")
        if self.format == "avro" and not self.tidb_extension and self.fidelity == LOSSLESS:
            raise ValueError(
                "[kafka] tidb-extension = false: a lossless delete in Avro is shown by it; set"
                " fidelity = 'as-ticdc'"
            )

    def options(self) -> dict[str, str | int | bool]:
        """Return all further options of librdkafka, secrets too.

        Raises ValueError when a secret isn't at its place in the settings.
        """
        found = dict(self.client)
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


def _check_zone(section: str, name: str) -> None:
    try:
        find_zone(name)
    except ValueError as error:
        raise ValueError(f"[{section}] time-zone: {error}") from None
