"""What a call is, by its headers."""

from __future__ import annotations

from pump_service.lane.hpack import Headers

_WRITE_PATH = (b":path", b"/binlog.Pump/WriteBinlog")
_PULL_PATH = (b":path", b"/binlog.Pump/PullBinlogs")
_WINDOW_PATHS = tuple((b":path", b"/sluice.Window/" + name) for name in (b"Bounds", b"Await", b"Read"))
_GZIP = (b"grpc-encoding", b"gzip")  # a Drainer with compressor = "gzip": grpcio can do that
_GRPC = (b"content-type", b"application/grpc")


def is_write(headers: Headers) -> bool:
    """Whether it is a WriteBinlog call."""
    return _WRITE_PATH in headers and is_grpc(headers)


def is_pull(headers: Headers) -> bool:
    """Whether it is a PullBinlogs call that the lane can answer."""
    return _PULL_PATH in headers and _GZIP not in headers


def is_window(headers: Headers) -> bool:
    """Whether it is a call of sluice.Window that the lane can answer."""
    return any(path in headers for path in _WINDOW_PATHS) and _GZIP not in headers


def is_grpc(headers: Headers) -> bool:
    """Whether it is gRPC."""
    return _GRPC in headers or any(
        name == b"content-type" and value.startswith((b"application/grpc+", b"application/grpc;"))
        for name, value in headers
    )
