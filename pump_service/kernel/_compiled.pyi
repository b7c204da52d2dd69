from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Record = TypeVar("Record", bound=tuple[Any, ...])
Origin = TypeVar("Origin")

EDITION: int

def calls(
    data: bytes,
    pos: int,
    block: bytes | None,
    opens: Callable[[bytes], bool],
    opened: dict[int, Any],
    terms: tuple[bytes, int, bool, type[tuple[Any, ...]]],
    largest: int,
    last: int,
    room: int,
    records: list[Any],
    streams: list[int],
    /,
) -> tuple[int, int, int]: ...
def replies(streams: list[int], parts: tuple[bytes, bytes, bytes, bytes], /) -> bytes: ...
def framed(
    payloads: tuple[bytes, ...],
    first: int,
    offset: int,
    limit: int,
    magic: int,
    crc32c: Callable[[bytes], int],
    /,
) -> tuple[bytes, list[int]]: ...
def put_entries(
    put: Callable[[bytes, bytes], object],
    prefix: bytes,
    fid: int,
    tps: Sequence[int],
    starts: Sequence[int],
    commits: Sequence[int],
    offsets: Sequence[int],
    /,
) -> None: ...
def no_ended() -> Any: ...
def note(
    records: Sequence[Record],
    origin: Origin,
    of: dict[int, Origin],
    ended: Any,
    old_ts: int,
    repeated: list[Record],
    old: list[Record],
    /,
) -> bool: ...
def merged(commit: bytes, prewrite: bytes, /) -> bytes | None: ...
def pull_message(payload: bytes, start_ts: int, commit_ts: int, /) -> bytes: ...
def fields(
    block: bytes, fixed: tuple[tuple[bytes, bytes], ...], entries: Sequence[tuple[bytes, bytes]], /
) -> tuple[tuple[tuple[bytes, bytes], ...], list[tuple[bytes, bytes]]] | None: ...
