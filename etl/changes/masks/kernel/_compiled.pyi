from sluice.etl.changes.masks.kernel.plain import Buffer, Spec

EDITION: int

def values(data: Buffer, offsets: Buffer, padding: int, mask: Spec, /) -> tuple[bytes, bytes]: ...
def rows(
    data: Buffer,
    offsets: Buffer,
    places: Buffer,
    kinds: Buffer,
    old: Buffer,
    new: Buffer,
    slots: int,
    padding: int,
    masks: tuple[Spec, ...],
    /,
) -> tuple[bytes, bytes] | None: ...
