from typing import Any

from sluice.etl.changes.formats.kernel.plain import Spec

EDITION: int

def lines(
    data: Any, cells: bytes, slots: int, columns: tuple[Spec, ...], places: Any, escapes: bytes, /
) -> tuple[bytes, bytes, bytes] | None: ...
def net(
    data: Any, old: bytes, new: bytes, slots: int, key: bytes, kinds: bytes, ends: Any, /
) -> tuple[bytes, bytes, bytes, bytes, bytes] | None: ...
