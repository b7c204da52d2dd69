from sluice.pump_service.store.kernel.plain import Buffer, Ints

EDITION: int

def look(data: Buffer, base: int, offsets: Ints, into: Ints, /) -> None: ...
def place(
    data: Buffer,
    base: int,
    offsets: Buffer,
    lengths: Buffer,
    crcs: Buffer,
    targets: Buffer,
    into: Buffer,
    /,
) -> bool: ...
def crc(data: Buffer, by_table: bool, /) -> int: ...
