from collections.abc import Sequence
from typing import Any

from sluice.pump_service.capture.kernel.plain import Matched, Tables, Target

EDITION: int

def convert(
    changes: Sequence[Any], begin: int, targets: dict[int, Target | None], room: int, /
) -> tuple[int, int, int]: ...
def encode(
    start_ts: int, commit_ts: int, key: bytes, schema_version: int, tables: Tables, /
) -> bytes: ...
def match(
    entries: bytes,
    begin: int,
    bounds: tuple[bytes, bytes],
    resolved_ts: int,
    prewrites: dict[int, dict[bytes, Any]],
    types: tuple[type, type],
    /,
) -> Matched: ...
