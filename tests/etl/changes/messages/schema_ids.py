"""Give schemas ids as a registry does, and find them again, for messages in Avro."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sluice.etl.changes.messages import Message, head_with_id, resolved
from sluice.etl.changes.steps import MessageSchema

FIRST_ID = 41
_registered: list[MessageSchema] = []


def id_of(schema: MessageSchema) -> int:
    """Return the id under which the schema is registered."""
    if schema not in _registered:
        _registered.append(schema)
    return FIRST_ID + _registered.index(schema)


@functools.cache
def registered_schema(schema_id: int) -> Any:
    """Return the schema with the id."""
    return json.loads(_registered[schema_id - FIRST_ID].text)


def identified(messages: Iterable[Message], schemas: Sequence[MessageSchema]) -> Iterator[Message]:
    """Yield messages with ids, as the sink sends them."""
    for message in messages:
        yield (
            resolved(message, lambda head: head_with_id(head, schemas, id_of))
            if schemas
            else message
        )
