"""What a call is, by its headers."""

from __future__ import annotations

from sluice.pump_service.grpc_fastpath.hpack import Headers

_WRITE_PATH = (b":path", b"/binlog.Pump/WriteBinlog")
_GRPC = (b"content-type", b"application/grpc")


def is_write(headers: Headers) -> bool:
    """Return whether it is a WriteBinlog call."""
    return _WRITE_PATH in headers and is_grpc(headers)


def is_grpc(headers: Headers) -> bool:
    """Return whether it is gRPC."""
    return _GRPC in headers or any(
        name == b"content-type" and value.startswith((b"application/grpc+", b"application/grpc;"))
        for name, value in headers
    )
