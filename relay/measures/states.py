"""What could be restored, and what was verified, from time to time over the last week."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from sluice.relay.log import RelayLog
from sluice.relay.measures.points import DAY, WEEK
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["StateHistory", "StateSample"]

_FOLDER = "measures/states"
_MAX_VERSIONS = 4
_HINT = f"remove the folder `{_FOLDER}` beside the windows: it is written again from then on"


class StateSample(NamedTuple):
    """What was so at `at_ms` (Unix ms).

    `restorable_ms`: the length of the range in which every table could be restored;
    `verified_age_ms`: the age of the oldest of the tables' last verifications. None: nothing could,
    or none was.
    """

    at_ms: int
    restorable_ms: float | None
    verified_age_ms: float | None


class StateHistory:
    """The samples of a pipeline. Every method raises RelayCorruptError, OSError."""

    def __init__(self, relay: RelayLog) -> None:
        form = DocumentFormat(_to_json, _from_json, tuple, _HINT)
        self._document: VersionedDocument[tuple[StateSample, ...]] = VersionedDocument(
            relay.place, _FOLDER, form, _MAX_VERSIONS
        )

    def note(self, sample: StateSample) -> None:
        """Keep a sample durably; of older ones one in 5 minutes of a day, 30 of a week."""
        self._document.change(lambda there: _thinned((*there, sample)))

    def samples(self) -> tuple[StateSample, ...]:
        """Return what is kept, ascending."""
        return self._document.load()


def _thinned(samples: Iterable[StateSample]) -> tuple[StateSample, ...]:
    found = sorted(samples, key=lambda sample: sample.at_ms)
    now = found[-1].at_ms
    kept: dict[tuple[int, int], StateSample] = {}
    for sample in found:
        series = DAY if sample.at_ms > now - DAY.span_ms else WEEK
        if sample.at_ms > now - WEEK.span_ms:
            kept[series.step_ms, sample.at_ms // series.step_ms] = sample
    return tuple(kept.values())


def _to_json(samples: tuple[StateSample, ...]) -> bytes:
    return json.dumps({"samples": samples}, separators=(",", ":")).encode() + b"\n"


def _from_json(data: bytes) -> tuple[StateSample, ...]:
    try:
        return tuple(StateSample(*sample) for sample in json.loads(data)["samples"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no samples: {error!r}") from None
