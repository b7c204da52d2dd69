from sluice.tidb.kernel.plain import Buffer

EDITION: int

def walk(
    data: Buffer,
    offsets: Buffer,
    places: Buffer,
    kinds: Buffer,
    slots: int,
    handle: Buffer,
    of_inserts: Buffer,
    of_others: Buffer,
    /,
) -> tuple[bytes, bytes, bool] | None: ...
def gather(
    data: Buffer, cells: Buffer, slots: int, slot: int, places: Buffer, padding: int, /
) -> tuple[bytes, bytes]: ...
def alike(
    data: Buffer, old: Buffer, new: Buffer, codes: bytes, of_old: Buffer, of_new: Buffer, /
) -> bytes: ...
