"""Find out how large messages may be, and make those that are larger fit, or refuse them by name.

A topic's limit is what its brokers say (`max.message.bytes`; without one of its own their
`message.max.bytes`). Brokers compare it with what comes to them, compressed. A row's message above
it becomes one of the key's columns alone, by `[kafka] large-messages`: the whole message is in a
file of an object store then, or nowhere. A file is one JSON object, as TiCDC's claim checks:

    {"key": base64 or null, "value": base64}

under <url>/<day of writing>/<topic>/<partition>-<commit ts>-<number>-<digest>.json: the number of
the message in its transaction, and a digest of table and key. So a transaction that is sent again
replaces its files of that day. Rows of a snapshot, which is sent in several parts at one commit ts,
differ by their keys.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
import logging
import threading
from collections.abc import Sequence

import pyarrow as pa

from sluice.etl.changes.messages import Encoder, Message
from sluice.etl.changes.steps import MessageSchema
from sluice.etl.downstream.sinks._kafka_client import KafkaClient
from sluice.etl.downstream.sinks._topic_limits import wire_bytes
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.settings import Kafka
from sluice.relay.storage import open_storage

log = logging.getLogger("sluice.apply")

_SURE_BYTES = 1 << 16
"""More than the headers of any message have: an index key's names and values."""
_COMPRESSED_SURPLUS = 1.05
"""The client's codec may pack a little less than the one that is asked for an estimate."""
_SHOWN_CHARACTERS = 300
_DIGEST_CHARACTERS = 16
_DAY_MS = 86_400_000
_CLEAN_UP_INTERVAL = datetime.timedelta(hours=1)


class LargeMessages:
    """What one pipeline does with messages that are too large. Used by one thread."""

    def __init__(self, options: Kafka, client: KafkaClient, encoder: Encoder | None) -> None:
        """Keep the options; nothing is asked of brokers or store yet."""
        self._options = options
        self._client = client
        self._encoder = encoder
        self._codec = options.compression
        self._checks = ClaimChecks(options) if options.claim_check_url else None
        self._commit_ts = self._number = 0
        self._sure: dict[str, int] = {}
        """By topic: messages of so many bytes fit, whatever their headers."""

    def fitting(
        self, message: Message, schemas: Sequence[MessageSchema], topic: str, partition: int
    ) -> Message:
        """Return a row's message, or what is sent in its place.

        Raises ApplyError if it is too large and nothing else may be sent.
        """
        if message.commit_ts != self._commit_ts:
            self._commit_ts, self._number = message.commit_ts, 0
        self._number += 1
        if self._fits(message, topic):
            return message
        location = ""
        reduced = None
        if self._encoder is not None and self._options.large_messages != "refuse":
            if self._checks is not None:
                self._checks.check_kept(topic, self._client)
                row = self._encoder.key_of(message, schemas)
                location = self._checks.location(topic, partition, message, self._number, row)
            reduced = self._encoder.key_only(message, schemas, location)
        if reduced is None or not self._fits(reduced, topic):
            raise self._refusal(message, schemas, topic)
        if self._checks is not None:
            self._checks.write(location, message)
        log.info(
            "message too large, its key is sent alone topic=%s partition=%d commit_ts=%d bytes=%d"
            " location=%s",
            topic, partition, message.commit_ts, wire_bytes(message), location or "-",
        )  # fmt: skip
        return reduced

    def check(self, message: Message, topic: str) -> None:
        """Raise ApplyError for a message that is too large and has no shorter form."""
        if not self._fits(message, topic):
            raise self._refusal(message, (), topic)

    def _fits(self, message: Message, topic: str) -> bool:
        size = message.size
        if size <= self._sure.get(topic, -1):
            return True
        if size > self._options.max_message_bytes:
            return False
        limit = self._client.limits_of(topic).max_message_bytes
        sure = self._sure[topic] = min(self._options.max_message_bytes, limit - _SURE_BYTES)
        if size <= sure:
            return True
        whole = wire_bytes(message)
        if whole > limit and self._codec != "none":
            whole += self._saved(message)
        return whole <= limit

    def _saved(self, message: Message) -> int:
        """Return by how many bytes compression changes a value's size, which is mostly below 0."""
        value = message.value or b""
        packed = pa.compress(value, codec=self._codec, asbytes=True)
        return int(len(packed) * _COMPRESSED_SURPLUS) - len(value)

    def _refusal(
        self, message: Message, schemas: Sequence[MessageSchema], topic: str
    ) -> ApplyError:
        headers = dict(message.headers)
        table = headers.get("table", b"").decode()
        limit = self._client.limits_of(topic).max_message_bytes
        shown = self._shown_key(message, schemas)
        what = (f" of table {table!r}" if table else "") + (f", key {shown}," if shown else "")
        ways = [
            f"raise [kafka] max-message-bytes ({self._options.max_message_bytes})"
            f" and max.message.bytes of topic {topic!r} ({limit})"
        ]
        if self._codec == "none":
            ways.append('set [kafka.client] "compression.type" = "zstd"')
        if self._options.large_messages == "refuse":
            ways.append("set [kafka] large-messages = 'claim-check' or 'key-only'")
        ways.append(f"leave the transaction out: `sluice txn skip {message.commit_ts}`")
        found = ApplyError(
            f"{self._client.address}: the transaction at commit_ts {message.commit_ts} has a"
            f" message{what} of {message.size} bytes, topic {topic!r} takes {limit} and [kafka]"
            f" max-message-bytes is {self._options.max_message_bytes}",
            hint="; or ".join(ways),
        )
        found.topic = topic
        return found

    def _shown_key(self, message: Message, schemas: Sequence[MessageSchema]) -> str:
        """Return the key as text; "" without one."""
        is_row = "start_ts" in dict(message.headers)
        found = self._encoder.key_of(message, schemas) if self._encoder and is_row else ""
        return found[:_SHOWN_CHARACTERS]


class ClaimChecks:
    """The files of messages that were too large."""

    def __init__(self, options: Kafka) -> None:
        """Keep the options; the store is opened with the first file."""
        self._url = options.claim_check_url.rstrip("/")
        self._keep_days = options.claim_check_keep_days
        self._cleaned_at: datetime.datetime | None = None
        self._cleaner: threading.Thread | None = None

    def location(self, topic: str, partition: int, message: Message, number: int, key: str) -> str:
        """Return the URL of a message's file."""
        day = datetime.datetime.now(datetime.UTC).date()
        row = dict(message.headers).get("table", b"") + b"\0" + key.encode()
        digest = hashlib.sha256(row).hexdigest()[:_DIGEST_CHARACTERS]
        name = f"{partition}-{message.commit_ts}-{number}-{digest}.json"
        return f"{self._url}/{day}/{topic}/{name}"

    def write(self, location: str, message: Message) -> None:
        """Write a message's file durably, and remove old ones in the background.

        Raises RelayError or OSError if the store doesn't take it.
        """
        parts = {
            name: None if part is None else base64.b64encode(part).decode()
            for name, part in (("key", message.key), ("value", message.value))
        }
        path = location[len(self._url) + 1 :]
        open_storage(self._url).replace(path, json.dumps(parts).encode())
        now = datetime.datetime.now(datetime.UTC)
        if not self._keep_days or (self._cleaner is not None and self._cleaner.is_alive()):
            return
        if self._cleaned_at is None or now > self._cleaned_at + _CLEAN_UP_INTERVAL:
            self._cleaned_at = now
            self._cleaner = threading.Thread(target=self.clean_up, args=(now,), daemon=True)
            self._cleaner.start()

    def check_kept(self, topic: str, client: KafkaClient) -> None:
        """Raise ApplyError if a topic keeps messages for longer than their files are kept."""
        kept_ms = client.limits_of(topic).retention_ms
        if not self._keep_days or kept_ms is None:
            return
        if not 0 <= kept_ms <= self._keep_days * _DAY_MS:
            days = "for ever" if kept_ms < 0 else f"for {kept_ms / _DAY_MS:g} days"
            raise ApplyError(
                f"topic {topic!r} keeps messages {days}, and [kafka] claim-check-keep-days is"
                f" {self._keep_days}: messages would name files that are removed",
                hint=(
                    "set claim-check-keep-days to more days than the topic's retention.ms, or to 0"
                    " to remove no files"
                ),
            )

    def clean_up(self, now: datetime.datetime) -> int:
        """Remove files of days that are over for long enough, and return how many; logs errors."""
        removed = 0
        first_kept = now.date() - datetime.timedelta(days=self._keep_days)
        try:
            storage = open_storage(self._url)
            for name in storage.names(""):
                with contextlib.suppress(ValueError):  # another one's folder
                    if datetime.date.fromisoformat(name) >= first_kept:
                        continue
                    for topic in storage.names(name):
                        for file in storage.names(f"{name}/{topic}"):
                            storage.remove(f"{name}/{topic}/{file}")
                            removed += 1
                        storage.remove_empty_directory(f"{name}/{topic}")
                    storage.remove_empty_directory(name)
        except OSError as error:
            log.warning("claim checks are not removed url=%s error=%s", self._url, error)
        return removed
