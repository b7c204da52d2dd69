"""The work of a stand-in cluster's TiDB: a replay or a workload, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from sluice.devstack.recording import Recording, RecordingError
from sluice.devstack.tidb.control import RequestRejected
from sluice.devstack.tidb.player import RecordingPlayer, ReplayError, ReplayOptions
from sluice.devstack.tidb.pump_writer import TransactionWriter
from sluice.devstack.tidb.tidb_server import UpstreamState
from sluice.devstack.tidb.workload import Workload, WorkloadError, WorkloadOptions

OPEN_TIMEOUT_S = 20.0


class UpstreamWork:
    """A replay or a workload of the cluster; its methods run on the cluster's event loop.

    `make_writer` returns the writer that the parameters of a request ask for.
    """

    def __init__(
        self,
        recording: Recording | None,
        upstream: UpstreamState,
        make_writer: Callable[[dict[str, Any]], TransactionWriter],
    ) -> None:
        self._recording, self._upstream, self._make_writer = recording, upstream, make_writer
        self.state = "idle"
        self.error: str | None = None
        self.until_ts: int | None = None
        self._player: RecordingPlayer | None = None
        self._workload: Workload | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = False

    def counts(self) -> dict[str, Any]:
        """Return what a replay has done so far."""
        return self._player.status() if self._player else {}

    async def replay(self, parameters: dict[str, Any]) -> None:
        """Start what POST /replay asks for, and return at once."""
        self._check_free()
        if self._recording is None:
            raise RequestRejected(
                409, "no recording to replay; start the stand-in cluster with --recording"
            )
        if self.state != "idle" or self._workload is not None:
            raise RequestRejected(
                409, "time can't go back in a cluster; start a fresh one to replay again"
            )
        try:
            self.until_ts = self._recording.resolve(parameters.get("until"))
        except (RecordingError, TypeError, AttributeError) as error:
            raise RequestRejected(400, str(error)) from error
        speed = parameters.get("speed") or "max"
        writer = self._make_writer(parameters)
        try:
            pace = None if speed == "max" else float(speed)
            player = RecordingPlayer(
                self._recording,
                writer,
                self._upstream,
                ReplayOptions(until_ts=self.until_ts, speed=pace),
            )
        except (ReplayError, TypeError, ValueError) as error:
            raise RequestRejected(400, f"speed {speed!r}: give a number above 0, or max") from error
        await self.open(writer)
        self._player, self.state = player, "replaying"
        self._task = asyncio.create_task(self._run_replay(player, writer))

    async def start_workload(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Start what POST /workload asks for, and return at once.

        With `binlogs` a TiDB whose TiKV is captured sends binlogs to the pumps, too.
        """
        self._check_free()
        if self._recording is not None and self.state == "idle":
            raise RequestRejected(
                409,
                "a workload would come before the recording in time; replay it first, or start"
                " without one",
            )
        of_writer = {name: parameters.pop(name, None) for name in ("strategy", "binlogs")}
        try:
            options = WorkloadOptions.from_json(parameters)
        except WorkloadError as error:
            raise RequestRejected(400, str(error)) from error
        writer = self._make_writer(of_writer)
        await self.open(writer)
        self._workload = Workload(options, writer, self._upstream, self._workload)
        self._task = asyncio.create_task(self._run_workload(self._workload, writer))
        return await self.workload_status({})

    async def workload_status(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of GET /workload.

        It runs until its connections are closed: then another may begin.
        """
        if self._workload is None:
            return {"state": "idle"}
        status = self._workload.status()
        if status["state"] in ("done", "failed") and self._task and not self._task.done():
            status["state"] = "running"
        return status

    async def stop(self) -> None:
        """End a replay or workload, its open transactions rolled back."""
        if self._task and not self._task.done():
            for work in (self._player if self.state == "replaying" else None, self._workload):
                if work is not None:
                    await work.stop()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), 10)

    def last_played(self) -> int | None:
        """Return up to where the recording has happened, or will have when its replay is over.

        None: all of it, or what the stand-in has kept of it when a replay ended.
        """
        return None if self.state in ("done", "stopped", "failed") else self.until_ts

    async def wait_for_locks(self, ts: int) -> None:
        """Wait for the locks that a reader at `ts` meets.

        They are those of transactions that may commit below it.
        """
        while self._workload is not None and self._workload.may_commit_at(ts):  # noqa: ASYNC110 few ms
            await asyncio.sleep(0.002)

    async def open(self, writer: TransactionWriter) -> None:
        """Connect a writer to its pumps. Raises RequestRejected."""
        self._opening = True
        try:
            await asyncio.wait_for(writer.open(), OPEN_TIMEOUT_S)
        except Exception as error:
            await writer.close()
            raise RequestRejected(409, f"can't write to pumps: {error}") from error
        finally:
            self._opening = False

    def _check_free(self) -> None:
        if self._opening or (self._task and not self._task.done()):
            raise RequestRejected(
                409, "a replay or a workload is running; wait for it, or POST /stop"
            )

    async def _run_replay(self, player: RecordingPlayer, writer: TransactionWriter) -> None:
        await self._run(player.run(), writer)
        ended = "failed" if self.error else "done" if player.complete else "stopped"
        end_ts = self.until_ts if ended == "done" else self._upstream.commits.newest_ts
        if end_ts is not None:
            self._upstream.versions.end_at(end_ts)
        self.state = ended

    async def _run_workload(self, workload: Workload, writer: TransactionWriter) -> None:
        await self._run(workload.run(), writer)

    async def _run(self, work: Coroutine[Any, Any, None], writer: TransactionWriter) -> None:
        self.error = None
        try:
            await work
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            await writer.close()
