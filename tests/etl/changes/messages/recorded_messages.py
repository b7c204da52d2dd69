"""Rebuild a recording's tables from messages, as a consumer does, and what they must be.

A format's reader makes a Change of each message. Nothing here knows how Sluice encodes: values are
compared by their meaning (`meaning`), those of a snapshot and of the row codec alike.
"""

from __future__ import annotations

import gzip
import json
import struct
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sluice.etl.changes.messages import (
    Bootstraps,
    Encoder,
    Message,
    MessageFormat,
    encoder_for,
    split_changes,
)
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.steps import MessageSchema
from sluice.relay import RelayLog
from sluice.tidb.schema import Column
from tests.etl.changes.messages.schema_ids import identified

BUILT_MS = 1716613769900
Row = dict[str, Any]
SET = "a SET"
SNAPSHOTS = {"types": "end", "shop": "b_mid", "ddl": "a_two_items", "bootstrap": "dump_sql"}
"""Snapshots of recordings before which DDL changes no rows but by messages."""


class Reader(Protocol):
    """A format's reader; it reads messages in order."""

    kinds: dict[str, dict[str, str]]
    """Kinds of each table's columns, as the last message had them."""
    columns: dict[str, str]
    """The kinds of the last change's columns."""

    def read(self, message: Message) -> Change | None:
        """Return what a message means."""

    def kept(self, value: Any, kind: str) -> Any:
        """Return what the format keeps of a value's meaning."""


class Change(NamedTuple):
    """What a message means. `op`: insert, update, delete, drop or truncate."""

    op: str
    table: str
    old: Row | None = None
    new: Row | None = None


def messages_of(relay: RelayLog, options: MessageFormat) -> Iterator[Message]:
    """Yield the messages of everything in a relay log."""
    encoder, bootstraps = encoder_for(options), Bootstraps()
    batch = BatchPayload.from_windows(relay.windows(0))
    for step in prepare_steps(
        relay.url, batch, PrepareOptions("kafka_messages", message_format=options)
    ):
        if step.kind == "transaction":
            messages = (message for _, message in split_changes(step.payload))
            yield from as_sent(encoder, messages, step.detail.schemas, bootstraps)
        elif step.kind == "ddl":
            truncation = encoder.truncation(step.detail, BUILT_MS)
            told = [*encoder.ddl(step.detail, BUILT_MS), *([truncation] if truncation else [])]
            yield from identified(told, encoder.schemas)


def as_sent(
    encoder: Encoder,
    messages: Iterable[Message],
    schemas: Sequence[MessageSchema],
    bootstraps: Bootstraps,
) -> Iterator[Message]:
    """Yield messages with what the sink adds: ids of schemas, or the schemas themselves."""
    if not encoder.describes_tables:
        yield from identified(messages, schemas)
        return
    for message in messages:
        due = bootstraps.before(message, schemas, 1.0, BUILT_MS)
        yield from [due, message] if due else [message]


def rebuilt(changes: Iterable[Change | None]) -> dict[str, Counter[Any]]:
    """Apply changes; every update and delete must meet the row that it names."""
    tables: dict[str, Counter[Any]] = defaultdict(Counter)
    for change in changes:
        if change is None:
            continue
        rows = tables[change.table]
        if change.op in ("drop", "truncate"):
            rows.clear()
        if change.old is not None:
            old = frozen(change.old)
            assert rows[old] > 0, change
            rows[old] -= 1
        if change.new is not None:
            rows[frozen(change.new)] += 1
    return {name: +rows for name, rows in tables.items() if +rows}


def elements_of(column: Column) -> tuple[str, ...]:
    """Return the elements of an ENUM; of a SET they have SET behind them."""
    return (*column.elems, SET) if column.kind == "set" else column.elems


def _defined(relay: RelayLog) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the elements of each table's columns, as its last DDL left them."""
    return {
        table.full_name: {column.name: elements_of(column) for column in table.columns}
        for window in relay.windows(0)
        for ddl in RecordedSchema.from_window(window).ddls
        for table in ddl.effect.tables.values()
        if table is not None
    }


def frozen(row: Row) -> Any:
    return frozenset(row.items())


def snapshot_ts(folder: Path, label: str) -> int:
    listed = json.loads((folder / "snapshots.json").read_text())
    return next(int(each["ts"]) for each in listed if each["label"] == label)


def snapshot_rows(
    folder: Path,
    label: str,
    reader: Reader,
    relay: RelayLog,
    wanted: Callable[[str], bool] = lambda _: True,
) -> dict[str, Counter[Any]]:
    """Return what TiDB showed of the tables `wanted`, in the columns that messages had."""
    kinds, defined = reader.kinds, _defined(relay)
    found = {}
    for path in (folder / "snapshots" / label).glob("*.jsonl*"):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as lines:
            columns = json.loads(next(lines))["columns"]
            name = urllib.parse.unquote(path.name.removesuffix(".gz").removesuffix(".jsonl"))
            if not wanted(name):
                continue
            if name not in kinds:
                assert next(lines, None) is None, name
                continue
            rows = Counter(
                frozen(
                    {
                        column: reader.kept(
                            shown(value, kinds[name][column], defined[name][column]),
                            kinds[name][column],
                        )
                        for column, value in zip(columns, json.loads(line), strict=True)
                        if column in kinds[name]
                    }
                )
                for line in lines
            )
            if rows:
                found[name] = rows
    return found


def shown(value: Any, kind: str, elements: tuple[str, ...]) -> Any:
    """Return the meaning of a snapshot's value."""
    if isinstance(value, dict):
        value = bytes.fromhex(value["hex"])
    if kind == "bit" and value is not None:
        value = int.from_bytes(value, "big")
    return meaning(value, kind, elements)


def index_of(text: str, elements: tuple[str, ...]) -> int:
    """Return the index of an ENUM's element, the bitmask of a SET's; a SET has an element more."""
    if elements[-1:] == (SET,):
        return sum(1 << elements.index(name) for name in text.split(",") if name)
    return elements.index(text) + 1 if text else 0


def meaning(value: Any, kind: str, elements: tuple[str, ...] = ()) -> Any:
    """Return a value so that two ways of writing it are equal. `kind`: as Column.kind.

    `elements`: see `elements_of`.
    """
    if value is None:
        return None
    match kind.removesuffix(" not null"):
        case "int" | "year" | "bit":
            return int(value)
        case "decimal":
            return Decimal(value).normalize() + 0
        case "float":  # TiDB shows the largest and smallest with six digits
            number = struct.unpack("<f", struct.pack("<f", float(value)))[0]
            return float(f"{number:.6g}")
        case "double":
            return float(value)
        case "json":
            return json.dumps(json.loads(value), sort_keys=True)
        case "date" | "time" | "datetime" | "timestamp":
            text = value if isinstance(value, str) else value.decode()
            return text.rstrip("0").rstrip(".") if "." in text else text
        case "index":
            return value if isinstance(value, int) else index_of(value, elements)
        case _:
            return (
                value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
            )


def decoded(columns: Iterable[Column], image: Row | None, reader: Reader) -> Row | None:
    """Return an image of the row codec as the reader has it, that has just read it."""
    if image is None:
        return None
    kinds = reader.columns
    return {
        c.name: reader.kept(meaning(image[c.name], kinds[c.name], elements_of(c)), kinds[c.name])
        for c in columns
    }
