"""Wait for a pipeline: a sensor, the trigger that it defers to, and a trigger for asset watchers.

For the downstream its checkpoint counts, which is in the transaction that writes the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from sluice.airflow.agent_client import call_kept
from sluice.airflow.versions import AirflowFailException
from sluice.errors import SluiceError, ours
from sluice.etl.settings.pauses import span_ms
from sluice.etl.settings.pipelines import pipelines
from sluice.tidb import moments, tso

__all__ = [
    "SluiceCompletedTrigger",
    "SluiceReached",
    "SluiceReachedTrigger",
    "SluiceStoppedTrigger",
]

DOWNSTREAM, ARCHIVE = "downstream", "archive"
"""The places at which a pipeline may be complete through a moment."""
POLL_INTERVAL_S = 5.0
"""A look costs one query of the downstream, and a batch doesn't notice five seconds."""
EVENT_SPACING_S = 30.0
"""Time between two events of an asset.

Of events that come before Airflow's scheduler has made the run of the first, it gives the others to
the run of the next event, which may be a day later.
"""
_SEEN = "sluice_stopped_ms"
"""Key in the watched asset's state store: Unix ms of the newest failure that has fired."""
_MARK = "sluice_completed_through_ms"
"""Key in the watched asset's state store: Unix ms of the newest boundary that has fired."""


class SluiceReached(BaseSensorOperator):  # type: ignore[misc] # Airflow is untyped
    """Wait until a pipeline's downstream has everything that was committed until a moment.

    `pipeline` is the name of its file, "" for that of ``SLUICE_CONFIG``. `moment` is a time (UTC if
    it has no zone) or a TSO, usually ``{{ data_interval_end }}``. `place` is ``downstream`` or
    ``archive``. The task holds no worker slot while it waits, unless `deferrable` is False. It also
    waits while there is no checkpoint, as before a bootstrap.
    """

    template_fields: Sequence[str] = ("pipeline", "moment", "place")
    ui_color = "#e6f2ff"

    def __init__(
        self,
        *,
        pipeline: str = "",
        moment: str | datetime = "{{ data_interval_end }}",
        place: str = DOWNSTREAM,
        poke_interval: float = POLL_INTERVAL_S,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.pipeline = pipeline
        self.moment = moment
        self.place = place
        self.deferrable = deferrable

    def execute(self, context: Any) -> None:
        """Return at once if the moment is reached, else defer. Raises AirflowFailException."""
        if not self.deferrable:
            super().execute(context)
            return
        if not self.poke(context):
            self.defer(
                trigger=SluiceReachedTrigger(
                    self.pipeline, self._ts(), self.place, _seconds(self.poke_interval)
                ),
                method_name="on_reached",
                timeout=timedelta(seconds=_seconds(self.timeout)),
            )

    def poke(self, context: Any) -> bool:
        """Return whether the downstream is complete. Raises AirflowFailException."""
        del context
        ts = self._ts()
        try:
            return Progress(self.pipeline, self.place, self.log).at_ts() >= ts
        except SluiceError as error:
            if error.transient:
                self.log.warning("unknown progress of the pipeline: %s", error)
                return False
            raise AirflowFailException(str(error)) from None

    def on_reached(self, context: Any, event: dict[str, Any]) -> None:
        """Finish after the trigger has fired. Raises AirflowFailException."""
        del context
        if event.get("error"):
            raise AirflowFailException(event["error"])
        self.log.info("reached %s: ts=%s", self.moment, event["ts"])

    def _ts(self) -> int:
        moment = self.moment
        text = moment.isoformat() if isinstance(moment, datetime) else str(moment)
        try:
            return moments.parse_moment(text)
        except SluiceError as error:
            raise AirflowFailException(f"moment: {error}") from None


class SluiceReachedTrigger(BaseTrigger):  # type: ignore[misc] # Airflow is untyped
    """Fire once, when a pipeline has all commits through `ts` (TSO) at `place`.

    The event is ``{"ts": TSO}``, how far it is, or ``{"error": text}`` if only an operator can
    help.
    """

    def __init__(
        self,
        pipeline: str,
        ts: int,
        place: str = DOWNSTREAM,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.ts = ts
        self.place = place
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, from which a triggerer makes it again."""
        return f"{__name__}.{type(self).__name__}", {
            "pipeline": self.pipeline,
            "ts": self.ts,
            "place": self.place,
            "poll_interval_s": self.poll_interval_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll_interval_s` until the pipeline is there."""
        progress = Progress(self.pipeline, self.place, self.log)
        while True:
            try:
                at_ts = await asyncio.to_thread(progress.at_ts)
            except SluiceError as error:
                if not error.transient:
                    yield TriggerEvent({"error": str(error)})
                    return
                self.log.warning("unknown progress of the pipeline: %s", error)
            else:
                if at_ts >= self.ts:
                    yield TriggerEvent({"ts": at_ts})
                    return
            await asyncio.sleep(self.poll_interval_s)


class SluiceCompletedTrigger(BaseEventTrigger):  # type: ignore[misc] # Airflow is untyped
    """Fire for each UTC day, or other span, through which a pipeline's downstream is complete.

    For an asset's watcher: ``Asset("orders", watchers=[AssetWatcher(name="days",
    trigger=SluiceCompletedTrigger(pipeline="shop"))])``. `every` is ``1d``, ``1h`` or another span,
    counted from midnight UTC. The event's ``extra`` has ``from`` and ``until``, two times in UTC.
    It begins with the first span that ends after the watcher was switched on; afterwards spans that
    ended while the triggerer was down are made up for. One may fire twice if the triggerer is
    killed in between.
    """

    def __init__(
        self, pipeline: str = "", every: str = "1d", poll_interval_s: float = POLL_INTERVAL_S
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.every = every
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, from which a triggerer makes it again."""
        return f"{__name__}.{type(self).__name__}", {
            "pipeline": self.pipeline,
            "every": self.every,
            "poll_interval_s": self.poll_interval_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll_interval_s`, for ever."""
        progress = Progress(self.pipeline, DOWNSTREAM, self.log)
        while True:
            try:
                at_ts = await asyncio.to_thread(progress.at_ts)
            except SluiceError as error:  # what an operator repairs is no reason to watch no more
                self.log.warning("unknown progress of the pipeline: %s", error)
                at_ts = 0
            for begin_ms in await self.new_spans(at_ts) if at_ts else ():
                yield TriggerEvent(
                    {
                        "pipeline": self.pipeline,
                        "from": _utc(begin_ms),
                        "until": _utc(begin_ms + self._span_ms()),
                    }
                )
                await self.mark(begin_ms)
                await asyncio.sleep(EVENT_SPACING_S)
            await asyncio.sleep(self.poll_interval_s)

    async def new_spans(self, at_ts: int) -> range:
        """Return the beginnings (Unix ms) of the spans that ended since the last mark."""
        span = self._span_ms()
        end_ms = tso.physical_ms(at_ts + 1) // span * span
        mark = await self.asset_state_store.aget(_MARK)
        if mark is None:
            await self.asset_state_store.aset(_MARK, end_ms)
            return range(0)
        return range(int(mark), end_ms, span)

    async def mark(self, begin_ms: int) -> None:
        """Record that the span which begins at `begin_ms` (Unix ms) has fired."""
        await self.asset_state_store.aset(_MARK, begin_ms + self._span_ms())

    def _span_ms(self) -> int:
        return span_ms(self.every)


class SluiceStoppedTrigger(BaseEventTrigger):  # type: ignore[misc] # Airflow is untyped
    """Fire each time a pipeline has stopped until an operator acts; for an asset's watcher."""

    def __init__(self, pipeline: str = "", poll_interval_s: float = POLL_INTERVAL_S) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, from which a triggerer makes it again."""
        return f"{__name__}.{type(self).__name__}", {
            "pipeline": self.pipeline,
            "poll_interval_s": self.poll_interval_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll_interval_s`, for ever."""
        while True:
            try:
                found = await asyncio.to_thread(self._why_stopped)
            except (SluiceError, OSError) as error:
                self.log.warning("unknown state of the pipeline: %s", error)
                found = None
            if found and found["made_ms"] > int(await self.asset_state_store.aget(_SEEN) or 0):
                yield TriggerEvent({"pipeline": self.pipeline, "what": found["what"]})
                await self.asset_state_store.aset(_SEEN, found["made_ms"])
            await asyncio.sleep(self.poll_interval_s)

    def _why_stopped(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = call_kept(pipelines().named(self.pipeline), "why_stopped")
        return found


class Progress:
    """Read how far a pipeline is complete at a place. Every look may block for some seconds."""

    def __init__(self, pipeline: str, place: str, log: Any) -> None:
        self._pipeline = pipeline
        self._place = place
        self._log = log
        self._problem = ""

    def at_ts(self) -> int:
        """Return the TSO through which it is complete, 0 for nothing.

        While the downstream doesn't answer, its last known checkpoint counts. Raises SettingsError,
        and what keeps the archive from being read.
        """
        try:
            found = call_kept(
                pipelines().named(self._pipeline), "completed_through", place=self._place
            )
        except OSError as error:
            raise ours(error) from None
        if found["problem"] and found["problem"] != self._problem:
            self._log.warning("the checkpoint can't be read now: %s", found["problem"])
        self._problem = found["problem"]
        return int(found["ts"])


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _seconds(span: float | timedelta) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)
