"""What a window record keeps of each part, and the kinds of row changes inside.

Apart from `sluice.relay.part`, which loads Arrow: reading the manifest needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

INSERT, UPDATE, DELETE = 0, 1, 2
"""Values of the column `kind` of a part."""


@dataclass(frozen=True, slots=True)
class Part:
    """Descriptor of a part: `path` from the relay's root, `bytes` and `crc32c` of the file.

    In the archive `path` goes on with the row groups, and `bytes` is their size. `crc32c` is that
    of the file's footer, which has the checksums of its row groups: see `sluice.relay.row_groups`.
    """

    path: str
    rows: int
    transactions: int
    bytes: int
    crc32c: int
    min_commit_ts: int
    max_commit_ts: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Part:
        """Parse a descriptor with every field, no other, of the right types. Raises ValueError."""
        fields = {"path": str} | dict.fromkeys(cls.__slots__[1:], int)
        if set(raw) != set(fields):
            raise ValueError(f"a part has the fields {sorted(raw)}, expected {sorted(fields)}")
        for name, kind in fields.items():
            if type(raw[name]) is not kind:
                raise ValueError(f"part field {name} is {raw[name]!r}, expected {kind.__name__}")
        return cls(**raw)
