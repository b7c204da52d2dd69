"""Pass steps from preparing to applying: one Arrow row a step, in the order of execution."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.steps._detail_text import detail_from_text, detail_to_text
from sluice.etl.changes.steps._details import LoadDetail, ScopedDdl, StepDetail, SurvivingRows
from sluice.tidb.table_name import full_name

STEP_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("schema", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("changes", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""Columns of steps.

`kind`: delete, load, ddl, commit, and what a write planner adds; `detail` is the JSON of that
kind's class in `sluice.etl.changes.steps._details`. `rows`: net rows. `changes`: the row changes a
commit completes (0 on other steps). `commit_ts`: the last commit timestamp a step belongs to; on a
commit, where the checkpoint goes.
"""

D = TypeVar("D", bound=StepDetail)

_BATCH_BYTES = 4 * 2**20
_NOTHING = pa.py_buffer(b"")


class ChangeError(SluiceError, ValueError):
    """Changes that can't be applied; names table, key and commit_ts."""

    hint = "leave the transaction out: `sluice txn skip`"


# Not frozen: that takes several times as long to make, and there is one for each statement.
@dataclass(slots=True, unsafe_hash=True)
class Step:
    """One row of STEP_SCHEMA; `payload` is bytes-like."""

    detail: StepDetail
    commit_ts: int
    schema: str = ""
    table: str = ""
    rows: int = 0
    changes: int = 0
    payload: Any = b""

    @property
    def kind(self) -> str:
        """Return delete, load, ddl, commit, or what a write planner adds."""
        return self.detail.kind

    def detail_of(self, kind: type[D]) -> D:
        """Return the detail of a step of this kind. Raises TypeError for another."""
        if not isinstance(self.detail, kind):
            raise TypeError(f"a {self.kind} step, where one with a {kind.__name__} was expected")
        return self.detail

    @property
    def full_name(self) -> str:
        """Return `schema.table`, for messages."""
        return full_name(self.schema, self.table)


def to_batches(steps: Iterator[Step]) -> Iterator[pa.RecordBatch]:
    """Yield steps as record batches in STEP_SCHEMA, each of about 4 MiB of payload or one step.

    What came before an exception of `steps` is handed on before it: all that can go downstream
    does.
    """
    waiting = _StepColumns(0)
    try:
        for step in steps:
            if waiting.payload and waiting.bytes + len(step.payload) > _BATCH_BYTES:
                yield waiting.to_batch()
                waiting = _StepColumns(waiting.first + len(waiting.payload))
            waiting.add(step)
    except Exception:
        if waiting.payload:
            yield waiting.to_batch()
        raise
    if waiting.payload:
        yield waiting.to_batch()


class _StepColumns:
    """The columns of steps, as they come.

    Thousands of steps that wait would be as many objects to go through for the garbage collector.
    """

    def __init__(self, first: int) -> None:
        """Create the step columns; `first`: the number of the first step."""
        self.first, self.bytes = first, 0
        self.payload: list[Any] = []
        self._kind: list[str] = []
        self._schema: list[str] = []
        self._table: list[str] = []
        self._detail: list[str] = []
        self._rows: list[int] = []
        self._changes: list[int] = []
        self._commit_ts: list[int] = []

    def add(self, step: Step) -> None:
        detail = detail_to_text(step.detail)
        self._kind.append(step.kind)
        self._schema.append(step.schema)
        self._table.append(step.table)
        self._detail.append(detail)
        self._rows.append(step.rows)
        self._changes.append(step.changes)
        self._commit_ts.append(step.commit_ts)
        self.payload.append(step.payload)
        self.bytes += len(step.payload)

    def to_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [
                pa.array(range(self.first, self.first + len(self.payload)), pa.int32()),
                pa.array(self._kind, pa.string()),
                pa.array(self._schema, pa.string()),
                pa.array(self._table, pa.string()),
                pa.array(self._detail, pa.string()),
                pa.array(self._rows, pa.int64()),
                pa.array(self._changes, pa.int64()),
                pa.array(self._commit_ts, pa.int64()),
                _joined_payloads(self.payload),
            ],
            schema=STEP_SCHEMA,
        )


def _joined_payloads(payloads: list[Any]) -> pa.BinaryArray:
    # Not pa.array over memoryviews: that keeps every buffer it was given for ever (pyarrow 26).
    offsets = list(itertools.accumulate(map(len, payloads), initial=0))
    data = b"".join(map(memoryview, payloads))
    return pa.BinaryArray.from_buffers(
        pa.binary(),
        len(payloads),
        [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(data)],
    )


def from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Step]:
    """Yield the steps of record batches in STEP_SCHEMA; payloads are buffers of them, not copies.

    Raises ChangeError when steps are missing or out of order.
    """
    return itertools.chain.from_iterable(lists_from_batches(batches))


def lists_from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[list[Step]]:
    """Yield the same as a list for each record batch."""
    expected = 0
    for batch in batches:
        for found in batch.column("step").to_pylist():
            if found != expected:
                raise ChangeError(
                    f"step {expected} expected, {found} found: the prepared batch is incomplete"
                )
            expected += 1
        yield _steps_of(batch)


def _steps_of(batch: pa.RecordBatch) -> list[Step]:
    names = ("kind", "detail", "commit_ts", "schema", "table", "rows", "changes")
    columns: list[list[Any]] = [batch.column(name).to_pylist() for name in names]
    return [
        Step(detail_from_text(kind, detail), ts, schema, table, net, completed, payload)
        for kind, detail, ts, schema, table, net, completed, payload in zip(
            *columns, _payload_slices(batch.column("payload")), strict=True
        )
    ]


def _payload_slices(payloads: pa.Array) -> Iterator[pa.Buffer]:
    """Yield the buffer of each.

    To ask an array for its values one by one costs several times as much.
    """
    _, edges, data = payloads.buffers()
    if not len(payloads):
        return
    numbers = memoryview(edges).cast("B")
    is_large = payloads.type == pa.large_binary()
    ends = (numbers.cast("q") if is_large else numbers.cast("i"))[
        payloads.offset : payloads.offset + len(payloads) + 1
    ]
    for begin, end in itertools.pairwise(ends):
        yield data.slice(begin, end - begin) if end > begin else _NOTHING


def with_surviving_rows(ddl: Step, loads: Iterable[Step]) -> Step:
    """Return the DDL step with load steps inside."""
    loads = list(loads)
    if not loads:
        return ddl
    heads = tuple(
        SurvivingRows(
            s.schema, s.table, s.detail_of(LoadDetail), s.rows, s.commit_ts, len(s.payload)
        )
        for s in loads
    )
    payload = b"".join(bytes(s.payload) for s in loads)
    return replace(ddl, detail=replace(ddl.detail_of(ScopedDdl), kept=heads), payload=payload)


def surviving_rows_of(ddl: Step) -> Iterator[Step]:
    """Yield the load steps inside a DDL step."""
    at = 0
    data = bytes(ddl.payload)
    for head in ddl.detail_of(ScopedDdl).kept:
        payload = data[at : at + head.length]
        at += len(payload)
        yield Step(head.detail, head.commit_ts, head.schema, head.table, head.rows, 0, payload)
