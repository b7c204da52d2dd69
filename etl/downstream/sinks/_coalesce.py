"""Coalesce neighbouring small steps, so that the server gets them in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sluice.etl.changes.steps import DeleteDetail, LoadDetail, RowsDetail, Step
from sluice.etl.downstream import MAX_PIPELINED

_MAX_SMALL_STEP_BYTES = 64 * 2**10
_MAX_GROUP_BYTES = 512 * 2**10
_MAX_GROUP_STEPS = MAX_PIPELINED - 3
"""Steps; the transaction is begun, the checkpoint's row locked and written besides."""


def coalesce_small_steps(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Group small deletes and loads that follow each other, with the commit right behind them.

    The order stays; any other step is a group of its own.
    """
    group: list[Step] = []
    size = 0
    for step in steps:
        if group and step.kind == "commit":
            group.append(step)
            yield group
            group, size = [], 0
            continue
        is_small = _is_small(step)
        if group and (
            not is_small
            or len(group) == _MAX_GROUP_STEPS
            or size + len(step.payload) > _MAX_GROUP_BYTES
        ):
            yield group
            group, size = [], 0
        if not is_small:
            yield [step]
            continue
        group.append(step)
        size += len(step.payload)
    if group:
        yield group


def are_coalesced(steps: Sequence[Step]) -> bool:
    """Return whether all of the steps are one of the groups of `coalesce_small_steps`."""
    size = sum(len(step.payload) for step in steps)
    return (
        len(steps) <= _MAX_GROUP_STEPS and size <= _MAX_GROUP_BYTES and all(map(_is_small, steps))
    )


def _is_small(step: Step) -> bool:
    """Return whether a step is one statement, and nothing has to be asked or set before it."""
    detail = step.detail
    if (
        not isinstance(detail, RowsDetail)
        or detail.absent
        or len(step.payload) > _MAX_SMALL_STEP_BYTES
    ):
        return False
    if isinstance(detail, LoadDetail):
        return not (detail.warnings or detail.layout.generated or detail.layout.blank_ends)
    return isinstance(detail, DeleteDetail) and detail.listed is None
