"""Notify Drainers of a new pump, so that they list the pumps again before it takes binlogs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sluice.tidb import pb
from sluice.tidb.etcd import NodeStatus
from sluice.tidb.rpc import TLS, describe, open_channel

_log = logging.getLogger(__name__)

_TOTAL_TIMEOUT_S = 10.0
_MAX_ATTEMPTS = 3
_FIRST_RETRY_DELAY_S = 1.0


def notify_drainers(drainers: Sequence[NodeStatus], tls: TLS | None = None) -> None:
    """Call `binlog.Cistern/Notify` on each drainer.

    Makes 3 attempts each, 10 s in total. Raises RuntimeError that names the drainer
    that doesn't answer.
    """
    import grpc

    deadline = time.monotonic() + _TOTAL_TIMEOUT_S
    for drainer in drainers:
        wait = _FIRST_RETRY_DELAY_S
        with open_channel(drainer.host, tls) as channel:
            call = channel.unary_unary(
                "/binlog.Cistern/Notify",
                request_serializer=pb.pump.NotifyReq.SerializeToString,
                response_deserializer=pb.pump.NotifyResp.FromString,
            )
            for left in range(_MAX_ATTEMPTS - 1, -1, -1):
                try:
                    call(pb.pump.NotifyReq(), timeout=max(deadline - time.monotonic(), 0.01))
                    _log.info("drainer %s at %s is notified", drainer.node_id, drainer.host)
                    break
                except grpc.RpcError as error:
                    if not left or time.monotonic() + wait > deadline:
                        raise RuntimeError(
                            f"drainer {drainer.node_id} at {drainer.host} is online in the registry"
                            f" but doesn't answer ({describe(error)}); if it is gone for good:"
                            f" `sluice drainers offline {drainer.node_id} --gone`"
                        ) from None
                time.sleep(wait)
                wait *= 2
