"""Check section ``[kafka]`` by itself, and against the rules of what is replicated."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from sluice.etl.changes.messages import (
    BINLOG,
    BY_TABLE,
    FIDELITIES,
    FORMATS,
    LOSSLESS,
    PARTITION_0,
    Dispatch,
    Routing,
    check_expression,
)
from sluice.etl.changes.rules import Filter
from sluice.etl.settings.connections import IS_SECRET
from sluice.etl.settings.sinks import (
    AT_LEAST_ONCE,
    CLAIM_CHECK,
    CORRECTNESS,
    EXACTLY_ONCE,
    KEY_ONLY,
    MAX_MESSAGE_BYTES,
    NONE,
    REFUSE,
    WITH_DDL,
    WITH_ROWS,
    Kafka,
    check_zone,
)
from sluice.relay import RelayError
from sluice.relay.url import parse_url
from sluice.tidb.folded import folded
from sluice.tidb.table_name import fits
from sluice.tidb.time_zone import find_zone

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
_LARGE_MESSAGES = (REFUSE, CLAIM_CHECK, KEY_ONLY)
_WITH_KEYS_ALONE = ("canal-json", "open-protocol", "simple")
"""Formats with a mark for messages that have the key's columns alone."""
_WITH_REGISTRY = ("avro", "debezium-avro")
_WITH_ZONE = ("canal-json", "open-protocol", "avro", "simple")
"""Formats whose TIMESTAMPs are in a zone that can be set."""
_WITH_WATERMARKS = ("canal-json", "debezium-json", "open-protocol", "simple")
_SUBJECTS = ("topic-name", "record-name", "topic-record-name")


def check_kafka(kafka: Kafka) -> None:
    """Raise ValueError that names the key, for a section with an error."""
    for key in ("brokers", "savepoint"):
        if not getattr(kafka, key):
            raise ValueError(f"[kafka] {key} is missing")
    if kafka.max_message_bytes > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"[kafka] max-message-bytes = {kafka.max_message_bytes}: the client takes"
            f" {MAX_MESSAGE_BYTES} at most"
        )
    for section in ("client", "client-env", "client-file"):
        for key in getattr(kafka, section.replace("-", "_")):
            if key in _RESERVED_OPTIONS:
                raise ValueError(
                    f'[kafka.{section}] "{key}" is set by Sluice: exactly once rests on it, or'
                    " [kafka] has a key for it"
                )
            if section == "client" and IS_SECRET.search(key):
                raise ValueError(
                    f'[kafka.client] "{key}" looks like a secret: name the environment variable'
                    " that holds it in [kafka.client-env], or the file in [kafka.client-file]"
                )
    check_zone("kafka", kafka.time_zone)
    _check_format(kafka)
    _check_topics(kafka)
    _check_truncation(kafka)
    _check_large_messages(kafka)


def _check_topics(kafka: Kafka) -> None:
    named = [("topic", kafka.topic)] if kafka.topic else []
    named += [(f'topics "{glob}"', str(topic)) for glob, topic in kafka.topics.items()]
    for key, expression in named:
        try:
            check_expression(expression)
        except ValueError as error:
            raise ValueError(f"[kafka] {key} = {error}") from None
    routing = kafka.routing
    others = {
        key: name
        for key in ("resume-topic", "transaction-topic", "control-topic")
        if (name := getattr(kafka, key.replace("-", "_")))
    }
    for key, name in others.items():
        if "{" in name:
            raise ValueError(f"[kafka] {key} = {name!r}: must be one topic's name")
        check_expression(name)
    taken = [*others.values(), *(expression for _, expression in named)]
    for key, name in others.items():
        if taken.count(name) > 1:
            raise ValueError(f"[kafka] {key} = {name!r}: must be a topic of its own")
    if kafka.delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise ValueError(
            f"[kafka] delivery = {kafka.delivery!r}: must be {EXACTLY_ONCE} or {AT_LEAST_ONCE}"
        )
    spread = not routing.is_one_partition or not kafka.is_transactional
    if kafka.format == BINLOG and (others or spread):
        raise ValueError(
            "[kafka] format = 'binlog' goes to partition 0 of one topic, exactly once: choose"
            " another format for other topics, partitions and deliveries"
        )
    if kafka.partitions < 0:
        raise ValueError(f"[kafka] partitions = {kafka.partitions}: must not be below 0")


def _check_truncation(kafka: Kafka) -> None:
    value = kafka.truncate_messages
    if value not in (WITH_DDL, WITH_ROWS, NONE):
        raise ValueError(
            f"[kafka] truncate-messages = {value!r}: must be one of {WITH_DDL}, {WITH_ROWS}, {NONE}"
        )
    if value == WITH_DDL:
        return
    if not kafka.format.startswith("debezium") or kafka.fidelity != LOSSLESS:
        raise ValueError(
            f"[kafka] truncate-messages = {value!r}: op t is in format = 'debezium-json' or"
            " 'debezium-avro', with fidelity = 'lossless' alone"
        )
    routing = kafka.routing
    dispatches = (routing.dispatch, *(each for _, each in routing.dispatches))
    spread = next((d.kind for d in dispatches if d.kind not in (PARTITION_0, BY_TABLE)), "")
    if value == WITH_ROWS and spread and kafka.partitions != 1:
        raise ValueError(
            f"[kafka] truncate-messages = {value!r}: with dispatch = {spread!r} a table's rows are"
            " in several partitions, so readers could meet op t behind rows that came later; use"
            f" dispatch = {BY_TABLE!r}, or partitions = 1"
        )


def _check_large_messages(kafka: Kafka) -> None:
    if kafka.large_messages not in _LARGE_MESSAGES:
        raise ValueError(
            f"[kafka] large-messages = {kafka.large_messages!r}: must be one of"
            f" {', '.join(_LARGE_MESSAGES)}"
        )
    marks = kafka.format in _WITH_KEYS_ALONE and kafka.tidb_extension
    if kafka.large_messages != REFUSE and not marks:
        raise ValueError(
            f"[kafka] large-messages = {kafka.large_messages!r}: with format = {kafka.format!r}"
            " readers would take a key alone for a row with NULLs; possible are"
            f" {', '.join(_WITH_KEYS_ALONE)}, with tidb-extension = true"
        )
    if (kafka.large_messages == CLAIM_CHECK) != bool(kafka.claim_check_url):
        raise ValueError(
            f"[kafka] large-messages = {CLAIM_CHECK!r} and claim-check-url go together"
        )
    if kafka.claim_check_url:
        try:
            parse_url(kafka.claim_check_url)
        except RelayError as error:
            raise ValueError(f"[kafka] claim-check-url: {error}") from None
    if kafka.claim_check_keep_days < 0:
        raise ValueError(
            f"[kafka] claim-check-keep-days = {kafka.claim_check_keep_days}: must not be below 0"
        )


def _check_format(kafka: Kafka) -> None:
    if kafka.format not in FORMATS:
        raise ValueError(f"[kafka] format = {kafka.format!r}; must be one of {', '.join(FORMATS)}")
    if kafka.fidelity not in FIDELITIES:
        raise ValueError(
            f"[kafka] fidelity = {kafka.fidelity!r}: must be one of {', '.join(FIDELITIES)}"
        )
    for key, is_set, formats in (
        ("fidelity", kafka.fidelity != LOSSLESS, FORMATS[1:]),
        ("tidb-extension", not kafka.tidb_extension, ("canal-json", "avro")),
        ("content-compatible", kafka.content_compatible, ("canal-json",)),
        ("integrity", kafka.integrity != NONE, ("simple",)),
        ("debezium-schema", kafka.debezium_schema, ("debezium-json",)),
        ("watermark-interval-s", kafka.watermark_interval_s != 0, _WITH_WATERMARKS),
        ("registry-url", kafka.registry_url != "", _WITH_REGISTRY),
    ):
        if is_set and kafka.format not in formats:
            raise ValueError(
                f"[kafka] {key} is for format = {' or '.join(map(repr, formats))}, not for"
                f" {kafka.format!r}"
            )
    if kafka.watermark_interval_s < 0:
        raise ValueError(
            f"[kafka] watermark-interval-s = {kafka.watermark_interval_s}: must not be below 0"
        )
    if kafka.watermark_interval_s and not kafka.tidb_extension:
        raise ValueError("[kafka] watermark-interval-s needs tidb-extension = true")
    if kafka.format.startswith("debezium") and kafka.time_zone != "UTC":
        raise ValueError(
            f"[kafka] time-zone = {kafka.time_zone!r}: format = {kafka.format!r} has UTC"
        )
    if kafka.format == "debezium-avro" and kafka.fidelity != LOSSLESS:
        raise ValueError(
            f"[kafka] fidelity = {kafka.fidelity!r}: format = 'debezium-avro' is lossless alone"
        )
    if kafka.integrity not in (NONE, CORRECTNESS):
        raise ValueError(
            f"[kafka] integrity = {kafka.integrity!r}: must be {NONE} or {CORRECTNESS}"
        )
    if kafka.integrity == CORRECTNESS and kafka.time_zone != "UTC":
        raise ValueError(
            f"[kafka] time-zone = {kafka.time_zone!r}: TiDB's checksum is of TIMESTAMPs in UTC; set"
            f" time-zone = 'UTC', or integrity = {NONE!r}"
        )
    _check_registry(kafka)
    if kafka.format in _WITH_ZONE and kafka.fidelity == LOSSLESS:
        zone = find_zone(kafka.time_zone)
        if not isinstance(zone, datetime.timezone) and kafka.time_zone != "UTC":
            raise ValueError(
                f"[kafka] time-zone = {kafka.time_zone!r}: where clocks are set back, two"
                " moments have one text; use 'UTC', an offset as in '+08:00', or fidelity ="
                " 'as-ticdc'"
            )


def _check_registry(kafka: Kafka) -> None:
    if kafka.registry_subjects not in _SUBJECTS:
        raise ValueError(
            f"[kafka] registry-subjects = {kafka.registry_subjects!r}: must be one of"
            f" {', '.join(_SUBJECTS)}"
        )
    if kafka.format in _WITH_REGISTRY and not kafka.registry_url.startswith(
        ("http://", "https://")
    ):
        raise ValueError(
            f"[kafka] registry-url = {kafka.registry_url!r}: format = {kafka.format!r} needs a"
            " schema registry, as in 'http://host:8081'"
        )
    if "@" in kafka.registry_url:
        raise ValueError(
            "[kafka] registry-url must not hold a password: set registry-user and"
            " registry-password-env"
        )
    if bool(kafka.registry_user) != bool(kafka.registry_password_env):
        raise ValueError("[kafka] registry-user and registry-password-env go together")
    if kafka.format == "avro" and not kafka.tidb_extension and kafka.fidelity == LOSSLESS:
        raise ValueError(
            "[kafka] tidb-extension = false: a lossless delete in Avro is shown by it; set"
            " fidelity = 'as-ticdc'"
        )


def check_left_out(routing: Routing, filters: Filter) -> None:
    """Raise ValueError for a dispatch by a column that a rule leaves out of the same tables.

    Globs are compared as texts, so a table that fits two of them unseen stops the pipeline at its
    first row instead.
    """
    for rule in filters.columns:
        for glob in rule.tables:
            for key, dispatch in _dispatches_of(routing, folded(glob)):
                for name in filter(rule.leaves_out, dispatch.columns):
                    raise ValueError(
                        f"[kafka] {key} names column {name}, which is to decide on partitions, and"
                        f" {rule.text} leaves it out of {glob}"
                    )


def _dispatches_of(routing: Routing, glob: str) -> Iterator[tuple[str, Dispatch]]:
    """Yield key and value of the dispatches that tables of a folded glob have."""
    for own, dispatch in routing.dispatches:
        covers = fits(glob, folded(own))
        if covers or fits(folded(own), glob):
            yield f'dispatches "{own}"', dispatch
        if covers:
            return
    yield "dispatch", routing.dispatch
