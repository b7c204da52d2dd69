"""A client of change data as plain as can be: the oracle for the stand-in's server, and for the
real client.

It shares no code with `sluice.pump_service`. A piece of the key space is followed by one coroutine,
which subscribes, keeps everything in memory, and after any error begins again where its piece was
resolved.
"""

import asyncio
import itertools
from collections import defaultdict

import grpc

from sluice.tidb import pb

END = object()


class NaiveClient:
    """Follows [start, end) (encoded keys) from `checkpoint_ts` on.

    `scan_regions(start, end)` asks PD.
    """

    def __init__(self, cluster_id, scan_regions, addresses, start, end, checkpoint_ts):
        self.cluster_id, self.scan_regions, self.addresses = cluster_id, scan_regions, addresses
        self.checkpoint_ts = checkpoint_ts
        self.has_exact_old_values = True
        """False if a scan has the bytes of the version before, and an event a binlog's old row."""
        self.pieces = {(start, end): checkpoint_ts}
        self.initialized = set()
        self.rows = defaultdict(dict)  # (commit_ts, start_ts) -> key -> (value or None, old value)
        self.errors = []
        self.late = []  # rows at or below what was resolved before on the same subscription
        self.seen = defaultdict(int)  # rows by type
        self._numbers = itertools.count(1)
        self._streams = {}
        self._tasks = [asyncio.ensure_future(self._follow(start, end, checkpoint_ts))]

    @property
    def frontier(self):
        return min(self.pieces.values())

    def transactions(self, ts=None):
        """Return what committed above the checkpoint, through `ts` or the frontier, in order."""
        ts = self.frontier if ts is None else ts
        return {
            key: self.rows[key] for key in sorted(self.rows) if self.checkpoint_ts < key[0] <= ts
        }

    def check(self):
        """Raise what ended one of its coroutines."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in list(self._streams.values()):
            await stream.close()

    async def _follow(self, start, end, checkpoint_ts):
        while True:
            regions = self.scan_regions(start, end)
            if len(regions) > 1:
                bounds = [start, *(region.start for region in regions[1:]), end]
                del self.pieces[start, end]
                for piece in itertools.pairwise(bounds):
                    self.pieces[piece] = checkpoint_ts
                    self._tasks.append(asyncio.ensure_future(self._follow(*piece, checkpoint_ts)))
                return
            checkpoint_ts = await self._subscribe(regions[0], start, end, checkpoint_ts)
            self.initialized.discard((start, end))
            await asyncio.sleep(0.002)

    async def _subscribe(self, region, start, end, checkpoint_ts):
        """Return the timestamp from which the piece goes on."""
        stream = self._streams.get(region.store_id)
        if stream is None or stream.is_broken:
            if stream is not None:
                await stream.close()
            stream = self._streams[region.store_id] = _Stream(self.addresses[region.store_id])
        number = next(self._numbers)
        inbox = stream.register(
            pb.cdc.ChangeDataRequest(
                header=pb.cdc.Header(cluster_id=self.cluster_id, ticdc_version="8.5.0"),
                region_id=region.id,
                region_epoch=region.meta().region_epoch,
                checkpoint_ts=checkpoint_ts,
                start_key=start,
                end_key=end,
                request_id=number,
                extra_op=1,
            )
        )
        state = _Subscription(self, checkpoint_ts)
        while True:
            item = await inbox.get()
            if item is END:
                self.errors.append("broken")
                return state.resolved_ts
            if isinstance(item, int):
                if state.is_initialized:
                    state.resolved_ts = max(state.resolved_ts, item)
                    self.pieces[start, end] = state.resolved_ts
                continue
            kind = item.WhichOneof("event")
            if kind == "error":
                self.errors.append(item.error.ListFields()[0][0].name)
                return state.resolved_ts
            if kind == "entries":
                for row in item.entries.entries:
                    state.take(row)
                if state.is_initialized:
                    self.initialized.add((start, end))


class _Subscription:
    def __init__(self, client, checkpoint_ts):
        self.client, self.checkpoint_ts, self.resolved_ts = client, checkpoint_ts, checkpoint_ts
        self.is_initialized = False
        self.prewrites, self.commits = {}, {}

    def take(self, row):
        log = pb.cdc.Event.LogType
        self.client.seen[log.Name(row.type)] += 1
        what = row.start_ts, row.key
        value = None if row.op_type == row.OpType.DELETE else row.value
        if row.type == log.INITIALIZED:
            self.is_initialized = True
            for kept, commit_ts in self.commits.items():
                if kept in self.prewrites:
                    self._emit(kept, commit_ts, *self.prewrites.pop(kept))
            self.commits.clear()
        elif row.type == log.PREWRITE:
            self.prewrites[what] = value, row.old_value
        elif row.type == log.COMMITTED:
            self._emit(what, row.commit_ts, value, row.old_value)
        elif row.type == log.ROLLBACK:
            if self.is_initialized:
                self.prewrites.pop(what, None)
        elif row.type == log.COMMIT:
            if what in self.prewrites:
                self._emit(what, row.commit_ts, *self.prewrites.pop(what))
            else:
                assert not self.is_initialized, "a COMMIT without its PREWRITE"
                self.commits[what] = row.commit_ts

    def _emit(self, what, commit_ts, value, old):
        start_ts, key = what
        if commit_ts <= self.checkpoint_ts:
            return
        if commit_ts <= self.resolved_ts:
            self.client.late.append((key, commit_ts, self.resolved_ts))
        found = self.client.rows[commit_ts, start_ts]
        known = found.setdefault(key, (value, old))
        compared = 2 if self.client.has_exact_old_values else 1
        assert known[:compared] == (value, old)[:compared], (
            f"{key} of {start_ts} came again, and differs: {known} {value} {old}"
        )


class _Stream:
    def __init__(self, address):
        self.is_broken = False
        self._channel = grpc.aio.insecure_channel(
            address, [("grpc.max_receive_message_length", -1)]
        )
        self._requests = asyncio.Queue()
        self._inboxes = {}
        self._task = asyncio.ensure_future(self._run())

    def register(self, request):
        inbox = self._inboxes[request.request_id] = asyncio.Queue()
        if self.is_broken:
            inbox.put_nowait(END)
        self._requests.put_nowait(request)
        return inbox

    async def close(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def _run(self):
        async def requests():
            while True:
                yield await self._requests.get()

        call = self._channel.stream_stream(
            "/cdcpb.ChangeData/EventFeedV2",
            request_serializer=pb.cdc.ChangeDataRequest.SerializeToString,
            response_deserializer=pb.cdc.ChangeDataEvent.FromString,
        )(requests(), metadata=(("features", "stream-multiplexing"),))
        try:
            async for message in call:
                assert not (message.events and message.HasField("resolved_ts"))
                for event in message.events:
                    self._inboxes[event.request_id].put_nowait(event)
                if message.HasField("resolved_ts"):
                    self._inboxes[message.resolved_ts.request_id].put_nowait(message.resolved_ts.ts)
        except grpc.RpcError:
            pass
        finally:
            self.is_broken = True
            for inbox in self._inboxes.values():
                inbox.put_nowait(END)
