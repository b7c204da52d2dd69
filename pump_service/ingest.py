"""Decide which WriteBinlog calls are accepted, and turn them into records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from sluice.errors import Signal
from sluice.pump_service.cluster import ClientConnection, ClientLiveness, FutureTsLimit
from sluice.pump_service.metrics import PumpMetrics
from sluice.pump_service.store import NoSpaceError, Record, Store
from sluice.pump_service.store.binlog_head import fields, stored_head
from sluice.tidb import pb
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE, ROLLBACK
from sluice.tidb.codec.varint import encode_uvarint

_log = logging.getLogger(__name__)

_MAX_TS = 2**63 - 1
_MAX_PARSED_BYTES = 64 << 10  # larger payloads are walked: parsing would copy them
_MAX_CACHED_HEAD_BYTES = 4096  # longer requests vary too much for `_heads`
_TYPE_TAG = 8
_SLOW_WRITE_S = 1.0  # slower calls are logged
_REPORT_INTERVAL_S = 1.0  # at most one such log line per interval


class WriteRejected(Signal):
    """Reject a WriteBinlog call: `text` is the message that TiDB sees."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """State which binlogs are accepted: cluster id, node state, limit for timestamps.

    Only an online pump accepts Prewrites and probes. Commits and Rollbacks are accepted in every
    state (`pausing` …), so that open transactions can end. Fake binlogs are written by the pump
    itself.
    """

    cluster_id: int
    state: Callable[[], str]
    time_limit: FutureTsLimit


class BinlogIngest:
    """Admit binlogs and hand them to the store."""

    def __init__(
        self, terms: AdmissionRules, store: Store, metrics: PumpMetrics, origins: ClientLiveness
    ) -> None:
        cluster_id = self._cluster_id = terms.cluster_id
        self._state, self._time_limit = terms.state, terms.time_limit
        self._store = store
        self._metrics = metrics
        self._origins = origins
        # A valid client's WriteBinlogReq{clusterID=1, payload=2} begins with these bytes.
        self._prefix = b"\x08" + encode_uvarint(cluster_id) + b"\x12"
        self._prefix_end = len(self._prefix)
        self._heads: dict[int, bytes] = {}
        """First bytes of a request up to its payload (prefix and payload length), by request
        length.
        """
        self._parse = pb.binlog.Binlog.FromString
        self.last_call = time.monotonic()
        self._reported = 0.0

    def admit(self, data: bytes, begin: int = 0, end: int | None = None) -> Record | None:
        """Return the record in the WriteBinlogReq at data[begin:end].

        Returns None for a probe, which succeeds without writing. Raises WriteRejected.
        """
        if end is None:
            end = len(data)
        # Nearly all requests of one length share their first bytes: cluster id and payload length.
        head = self._heads.get(end - begin)
        if head is not None and data.startswith(head, begin, end):
            payload = data[begin + len(head) : end]
        else:
            payload = self._payload(data, begin, end)
        if len(payload) > _MAX_PARSED_BYTES:
            tp, start, commit = _walk(payload)
        else:
            try:
                binlog = self._parse(payload)
            except DecodeError:
                raise WriteRejected(
                    _not_a_binlog(payload, "it isn't a protobuf message of that type")
                ) from None
            tp = binlog.tp
            start = binlog.start_ts
            commit = binlog.commit_ts
            # The parser drops an unknown tp, which would turn it into a Prewrite: check the bytes.
            if payload and (payload[0] != _TYPE_TAG or payload[1] != tp or tp > ROLLBACK):
                tp = _checked_type(payload, binlog)
                # Equal to protobuf's own encoded size: no field occurs twice. Only a negative int32
            # may take fewer bytes.
            odd = binlog.ByteSize() != len(payload) or binlog.ddl_schema_state < 0
            if odd and payload and stored_head(payload) != (tp, start, commit):
                raise WriteRejected(
                    _not_a_binlog(payload, "its type or timestamps are there more than once")
                )
        if tp == PREWRITE and (start != commit or start == 0):
            state = self._state()
            if state != "online":
                raise WriteRejected(f"no online: {state}")
        if start == 0 and commit == 0:
            self._check_space()
            return None
        if start < 0 or commit < 0:
            raise WriteRejected(
                _not_a_binlog(
                    payload, f"its timestamps are negative (start_ts {start}, commit_ts {commit})"
                )
            )
        if tp == COMMIT and commit <= start:
            raise WriteRejected(
                _not_a_binlog(payload, f"its commit_ts {commit} is not above its start_ts {start}")
            )
        limit = self._time_limit
        if (start > limit.limit or commit > limit.limit) and limit.exceeded(max(start, commit)):
            raise WriteRejected(_not_a_binlog(payload, limit.describe(max(start, commit))))
        if tp == ROLLBACK and commit:  # its index entry would replace that of a commit at that ts
            raise WriteRejected(
                _not_a_binlog(payload, f"a Rollback has no commit_ts, it has {commit}")
            )
        return Record(tp, start, commit, payload)

    def fast_admission(self) -> tuple[bytes, int, bool, type[Record]]:
        """Return the conditions under which a request needs no `admit`.

        These are the request's first bytes up to the payload's length, the highest timestamp,
        whether Prewrites are accepted, and the type of a record.
        """
        return self._prefix, self._time_limit.limit, self._state() == "online", Record

    def connect(self, ip: str) -> ClientConnection:
        """Return a ClientConnection for that address; the caller closes it."""
        return self._origins.connect(ip)

    def submit(
        self,
        records: Sequence[Record],
        done: Callable[[BaseException | None], None],
        origin: ClientConnection | None = None,
        *,
        here: bool = False,
        later: bool = False,
    ) -> None:
        """Submit records as Store.submit does; `origin` is their connection, None if unknown."""
        doubtful = self._origins.record_prewrites(records, origin)
        if doubtful is None:
            self._store.submit(records, done, here=here, later=later)
        else:
            self._store.submit_checked(records, done, origin.ip if origin else "", doubtful)

    def flush(self) -> None:
        """Call Store.flush."""
        self._store.flush()

    def observe(self, seconds: float, calls: int, *, ok: bool) -> None:
        """Count `calls` that the store answered together, `seconds` after they arrived."""
        self.last_call = time.monotonic()
        self._metrics.rpc.observe(seconds, calls, ("WriteBinlog", "succ" if ok else "fail"))
        if not ok:
            self._metrics.write_errors += calls
            self._metrics.lost += calls
        if seconds >= _SLOW_WRITE_S:
            self._report_slow(seconds, calls)

    def count_rejected(self) -> None:
        """Count a call that was rejected before the store."""
        self.last_call = time.monotonic()
        self._metrics.rpc.observe(0.0, 1, ("WriteBinlog", "fail"))
        self._metrics.lost += 1

    def _report_slow(self, seconds: float, calls: int) -> None:
        if self.last_call - self._reported >= _REPORT_INTERVAL_S:
            self._reported = self.last_call
            _log.warning("WriteBinlog took %.1f s (%d calls answered together)", seconds, calls)

    def _check_space(self) -> None:
        """Reject a probe while the store is not writable.

        A probe writes nothing, but TiDB must not return to this pump while its binlogs would be
        rejected.
        """
        if self._store.is_writable:
            return
        stats = self._store.stats()
        threshold = self._store.options.stop_write_at_available_space
        error = NoSpaceError(stats.available_bytes, threshold)
        raise WriteRejected(
            "the store has failed, see the pump's log" if stats.failed else str(error)
        )

    def _payload(self, data: bytes, begin: int, end: int) -> bytes:
        """Return the request's payload; protobuf parses only requests with unusual bytes."""
        if data.startswith(self._prefix, begin, end):
            pos = begin + self._prefix_end
            size = shift = 0
            for byte in data[pos : min(pos + 5, end)]:
                pos += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    if size == end - pos:
                        if end - begin <= _MAX_CACHED_HEAD_BYTES:
                            self._heads[end - begin] = data[begin:pos]
                        return data[pos:end]
                    break
                shift += 7
        message = data[begin:end]
        try:
            request = pb.pump.WriteBinlogReq.FromString(message)
        except DecodeError:
            raise WriteRejected(
                f"the request of {len(message)} bytes is no WriteBinlogReq:"
                f" {message[:16].hex(' ')} …"
            ) from None
        if request.clusterID != self._cluster_id:
            raise WriteRejected(
                f"cluster ID are mismatch, {request.clusterID} vs {self._cluster_id}"
            )
        payload: bytes = request.payload
        return payload


def _walk(payload: bytes) -> tuple[int, int, int]:
    """Return tp, start_ts and commit_ts of a large message without copying it.

    protobuf's objects would copy it. Raises WriteRejected if one of the fields occurs twice.
    """
    seen: dict[int, int] = {}
    try:
        for field in fields(payload):
            if field.number in (1, 2, 3):
                if field.wire != 0 or field.number in seen:
                    raise WriteRejected(
                        _not_a_binlog(
                            payload,
                            "its type or timestamps are there more than once, or no numbers",
                        )
                    )
                seen[field.number] = (
                    field.varint if field.varint <= _MAX_TS else field.varint - 2**64
                )
    except ValueError as error:
        raise WriteRejected(_not_a_binlog(payload, str(error))) from None
    if not seen:
        raise WriteRejected(_not_a_binlog(payload, "it has neither type nor timestamps"))
    tp = seen.get(1, PREWRITE)
    if not 0 <= tp <= ROLLBACK:
        raise WriteRejected(_not_a_binlog(payload, f"its type {tp} is not in use"))
    return tp, seen.get(2, 0), seen.get(3, 0)


def _checked_type(payload: bytes, binlog: pb.binlog.Binlog) -> int:
    """Return the type of a binlog whose fields are not in the usual order."""
    if binlog.HasField("tp"):
        tp = int(binlog.tp)
        if tp <= ROLLBACK:
            return tp
        raise WriteRejected(_not_a_binlog(payload, f"its type {tp} is not in use"))
    if binlog.HasField("start_ts") or binlog.HasField("commit_ts"):
        if payload[:1] == b"\x08":
            raise WriteRejected(_not_a_binlog(payload, "its type is unknown"))
        return PREWRITE
    raise WriteRejected(_not_a_binlog(payload, "it has neither type nor timestamps"))


def _not_a_binlog(payload: bytes, why: str) -> str:
    head = payload[:16].hex(" ")
    return (
        f"the payload of {len(payload)} bytes is no valid Binlog: {why}; it begins with"
        f" {head or 'nothing'}"
    )
