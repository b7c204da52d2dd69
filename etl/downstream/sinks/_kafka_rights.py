"""Name the right that a broker refused, its principal, and the command that grants it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]

TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER = "topic", "group", "transactional-id", "cluster"
"""Kinds of resources, as kafka-acls.sh names its options."""


@dataclass(frozen=True, slots=True)
class Right:
    """An operation on resources of one kind; a cluster has no name."""

    operation: str
    kind: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {', '.join(map(repr, self.names))}".rstrip()

    def grant(self, brokers: str, principal: str) -> str:
        """Return the command by which an administrator gives the right."""
        named = [each for name in self.names for each in (f"--{self.kind}", name)]
        return shlex.join([
            "kafka-acls.sh", "--bootstrap-server", brokers, "--command-config", "ADMIN.properties",
            "--add", "--allow-principal", principal, "--operation", self.operation,
            *(named or [f"--{self.kind}"]),
        ])  # fmt: skip


def principal_of(options: Mapping[str, Any]) -> str:
    """Return the principal of a client, by its options of librdkafka.

    Of certificates and tokens brokers make it by rules of their own: a placeholder stands for it.
    """
    name = options.get("sasl.username") or options.get("sasl.user.name")
    if name:
        return f"User:{name}"
    protocol = str(options.get("security.protocol", "PLAINTEXT")).upper()
    if protocol.startswith("SASL"):
        return "User:NAME_OF_TOKEN"
    if protocol == "SSL" and any(key.startswith("ssl.certificate.") for key in options):
        return "User:NAME_OF_CERTIFICATE"
    return "User:ANONYMOUS"


def refused_right(code: int, transactional_id: str, of_topic: Right | None) -> Right | None:
    """Return the right that an error of the brokers is about; None if it is about none.

    `of_topic`: what the client wanted of a topic.
    """
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return of_topic
    return {
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Right(
            "Write", TRANSACTIONAL_ID, (transactional_id,)
        ),
        KafkaError.GROUP_AUTHORIZATION_FAILED: Right("Describe", GROUP, (transactional_id,)),
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: Right("IdempotentWrite", CLUSTER),
    }.get(code)


def topics_without_write(client: AdminClient, topics: Iterable[str], timeout_s: int) -> list[str]:
    """Return those of the topics that the client may not write to, as far as brokers answer."""
    names = sorted(set(topics))
    answers = client.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=timeout_s
    )
    denied = []
    for name in names:
        try:
            allowed = answers[name].result().authorized_operations
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                denied.append(name)  # Write implies Describe
            continue
        if AclOperation.WRITE not in (allowed or ()):
            denied.append(name)
    return denied
