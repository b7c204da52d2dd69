"""Register schemas of Avro messages, and put the registry's ids into the messages.

A registry with Confluent's API: `POST /subjects/<subject>/versions` has a schema's id, and the same
one for the same text. That call is all that is needed, which is why no client's library is.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence

from sluice.errors import SluiceError
from sluice.etl.changes.messages import AS_TICDC, Message, head_with_id, resolved
from sluice.etl.changes.steps import MessageSchema, ScopedDdl
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.settings import Kafka

Schemas = Sequence[MessageSchema]

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_SHOWN_CHARACTERS = 500
"""How much of a registry's answer is shown."""
_REFUSED = (http.client.CONFLICT, http.client.UNPROCESSABLE_ENTITY)
_NO_ACCESS = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
_TRANSIENT = (http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS)


class RegistryUnavailableError(SluiceError, OSError):
    """The registry can't be reached, or doesn't answer in time: asking again may help."""

    transient = True
    hint = "start the schema registry, or correct [kafka] registry-url"


class _Heads(dict[bytes, bytes]):
    """What stands in front of records with ids, by what does with numbers."""

    def __init__(self, made: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._made = made

    def __missing__(self, head: bytes) -> bytes:
        found = self[head] = self._made(head)
        return found


class SchemaRegistry:
    """The registry of one pipeline, with the ids that it has given."""

    def __init__(self, options: Kafka) -> None:
        """Connect later, when the first schema is asked for."""
        self._options = options
        self._url = options.registry_url.rstrip("/")
        self._ids: dict[tuple[str, MessageSchema], int] = {}
        self._schemas: Schemas = ()
        self._heads: dict[str, _Heads] = {}

    def identified(self, message: Message, schemas: Schemas, topic: str) -> Message:
        """Return a message of a topic with the ids of its schemas. Raises as `id_of`."""
        if schemas is not self._schemas:  # another step's: numbers mean something else
            self._schemas, self._heads = schemas, {}
        heads = self._heads.get(topic)
        if heads is None:
            heads = self._heads[topic] = _Heads(
                lambda head: head_with_id(head, schemas, lambda schema: self.id_of(topic, schema))
            )
        return resolved(message, heads.__getitem__)

    def id_of(self, topic: str, schema: MessageSchema, at: str = "") -> int:
        """Return the id of a schema of a topic's messages, which is registered if it is new.

        `at` names the DDL statement that asks for it. Raises RegistryUnavailableError, and
        ApplyError where the registry refuses it.
        """
        known = self._ids.get((topic, schema))
        if known is None:
            subject = _subject(self._options, topic, schema)
            known = self._ids[topic, schema] = self._register(subject, schema, at)
        return known

    def register(self, topic: str, schemas: Sequence[MessageSchema], ddl: ScopedDdl) -> None:
        """Register what a table's messages will have behind a DDL statement. Raises as `id_of`."""
        for schema in schemas:
            self.id_of(topic, schema, f" behind the DDL at commit_ts {ddl.commit_ts} ({ddl.query})")

    def _register(self, subject: str, schema: MessageSchema, at: str) -> int:
        doing = f"registering {schema.record!r} as subject {subject!r}{at}"
        try:
            with urllib.request.urlopen(  # noqa: S310 settings take http and https alone
                self._request(subject, schema),
                timeout=self._options.timeout_s,
                context=_context(self._options),
            ) as answer:
                return _id_in(answer.read())
        except urllib.error.HTTPError as error:
            raise self._refusal(error, subject, doing) from error
        except ValueError as error:
            raise ApplyError(
                f"schema registry {self._url}, {doing}: the answer is {error}",
                hint="correct [kafka] registry-url, which must be the root of Confluent's API",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise RegistryUnavailableError(
                f"schema registry {self._url}, {doing}: {getattr(error, 'reason', error)!r}"
            ) from error

    def _request(self, subject: str, schema: MessageSchema) -> urllib.request.Request:
        quoted = urllib.parse.quote(subject, safe="")
        request = urllib.request.Request(  # noqa: S310 as above
            f"{self._url}/subjects/{quoted}/versions",
            json.dumps({"schema": schema.text}).encode(),
            {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE},
        )
        if password := self._options.registry_password():
            pair = f"{self._options.registry_user}:{password}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        elif token := self._options.registry_token():
            request.add_header("Authorization", f"Bearer {token}")
        return request

    def _refusal(self, error: urllib.error.HTTPError, subject: str, doing: str) -> SluiceError:
        said = error.read().decode("utf-8", "replace")[:_SHOWN_CHARACTERS]
        message = f"schema registry {self._url}, {doing}: {error.code} {error.reason}: {said}"
        if error.code in _REFUSED:
            path = f"{self._url}/config/{urllib.parse.quote(subject, safe='')}"
            return ApplyError(
                message,
                hint=(
                    "let readers take the new schema: curl -X PUT -H 'Content-Type:"
                    f""" application/json' -d '{{"compatibility": "NONE"}}' {path}; if several"""
                    " tables share the topic, set [kafka] registry-subjects ="
                    " 'topic-record-name'; then run the task again"
                ),
            )
        if error.code in _NO_ACCESS:
            return ApplyError(
                message,
                hint="set [kafka] registry-user and registry-password-env, or registry-token-env",
            )
        if error.code in _TRANSIENT or error.code >= http.client.INTERNAL_SERVER_ERROR:
            return RegistryUnavailableError(message)
        return ApplyError(message, hint="correct [kafka] registry-url")


def _subject(options: Kafka, topic: str, schema: MessageSchema) -> str:
    """Return the subject of a schema.

    A key's record is named as the value's in TiCDC's schemas, so subjects by record end with the
    part, too. Messages of the control topic are of many tables, so there the record counts always.
    """
    if topic == options.control_topic and options.registry_subjects == "topic-name":
        return f"{topic}-{schema.record}-{schema.part}"
    if options.fidelity == AS_TICDC:
        topic = topic.replace(".", "_")
    match options.registry_subjects:
        case "record-name":
            return f"{schema.record}-{schema.part}"
        case "topic-record-name":
            return f"{topic}-{schema.record}-{schema.part}"
    return f"{topic}-{schema.part}"


def _context(options: Kafka) -> ssl.SSLContext | None:
    if not options.registry_url.startswith("https:"):
        return None
    return ssl.create_default_context(cafile=options.registry_ca or None)


def _id_in(body: bytes) -> int:
    found = json.loads(body)
    if not isinstance(found, dict) or not isinstance(found.get("id"), int):
        raise ValueError(f"{body[:_SHOWN_CHARACTERS]!r}, which has no id")
    return int(found["id"])
